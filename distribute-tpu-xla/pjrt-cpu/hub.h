// Collectives between processes: a hub in process 0 to which every rank of
// every group has a connection. The hub waits for one message of each rank,
// computes all results and sends each rank its own. Slow and simple: it exists
// to test programs of several hosts on one.
//
// A rank that is lost (its process ended) is an error of all other ranks.
#pragma once

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <list>
#include <thread>

#include "absl/types/span.h"
#include "convert.h"
#include "xla/core/collectives/reduction_kind.h"

namespace {

using Bytes = std::vector<char>;

enum class Op : int32_t { kGather, kReduce, kReduceScatter, kBroadcast, kPermute, kAllToAll };

// What a rank sends before its bytes.
struct Request {
  Op op;
  int32_t reduction;  // xla::ReductionKind
  int32_t type;       // xla::PrimitiveType
  int32_t peer;       // root of a broadcast, source of a permute, or -1
  uint64_t bytes;
};
// What the hub answers before the bytes: of the result, or of a text.
struct Reply {
  int64_t ok;
  uint64_t bytes;
};
// What a rank sends first, before the name of its group.
struct Hello {
  int32_t rank, ranks;
  uint64_t name_bytes;
};

// ---- Sockets ----------------------------------------------------------------

bool SendAll(int fd, const void* data, size_t n) {
  for (const char* p = static_cast<const char*>(data); n > 0;) {
    ssize_t sent = send(fd, p, n, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    p += sent;
    n -= static_cast<size_t>(sent);
  }
  return true;
}
bool ReceiveAll(int fd, void* data, size_t n) {
  for (char* p = static_cast<char*>(data); n > 0;) {
    ssize_t got = recv(fd, p, n, 0);
    if (got <= 0) return false;
    p += got;
    n -= static_cast<size_t>(got);
  }
  return true;
}

struct Address {
  sockaddr_storage storage;
  socklen_t size;
};
absl::StatusOr<Address> Resolve(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos)
    return absl::InvalidArgumentError("coordinator_address must be host:port, got " + text);
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const std::string host = text.substr(0, colon), port = text.substr(colon + 1);
  if (int e = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); e != 0)
    return absl::InvalidArgumentError("coordinator_address " + text + ": " + gai_strerror(e));
  Address a = {};
  std::memcpy(&a.storage, found->ai_addr, found->ai_addrlen);
  a.size = found->ai_addrlen;
  freeaddrinfo(found);
  return a;
}

// ---- What the hub computes --------------------------------------------------

template <class T>
void ReduceInto(xla::ReductionKind kind, char* into, const char* from, size_t bytes) {
  T* a = reinterpret_cast<T*>(into);
  const T* b = reinterpret_cast<const T*>(from);
  for (size_t i = 0; i < bytes / sizeof(T); ++i) {
    switch (kind) {
      case xla::ReductionKind::SUM: a[i] = static_cast<T>(a[i] + b[i]); break;
      case xla::ReductionKind::PRODUCT: a[i] = static_cast<T>(a[i] * b[i]); break;
      case xla::ReductionKind::MIN: a[i] = b[i] < a[i] ? b[i] : a[i]; break;
      case xla::ReductionKind::MAX: a[i] = a[i] < b[i] ? b[i] : a[i]; break;
    }
  }
}

bool ReduceBytes(const Request& r, char* into, const char* from) {
  const auto kind = static_cast<xla::ReductionKind>(r.reduction);
  switch (static_cast<xla::PrimitiveType>(r.type)) {
    case xla::F32: ReduceInto<float>(kind, into, from, r.bytes); return true;
    case xla::F64: ReduceInto<double>(kind, into, from, r.bytes); return true;
    case xla::F16: ReduceInto<Eigen::half>(kind, into, from, r.bytes); return true;
    case xla::BF16: ReduceInto<Eigen::bfloat16>(kind, into, from, r.bytes); return true;
    case xla::S8: ReduceInto<int8_t>(kind, into, from, r.bytes); return true;
    case xla::S16: ReduceInto<int16_t>(kind, into, from, r.bytes); return true;
    case xla::S32: ReduceInto<int32_t>(kind, into, from, r.bytes); return true;
    case xla::S64: ReduceInto<int64_t>(kind, into, from, r.bytes); return true;
    case xla::U8: ReduceInto<uint8_t>(kind, into, from, r.bytes); return true;
    case xla::U16: ReduceInto<uint16_t>(kind, into, from, r.bytes); return true;
    case xla::U32: ReduceInto<uint32_t>(kind, into, from, r.bytes); return true;
    case xla::U64: ReduceInto<uint64_t>(kind, into, from, r.bytes); return true;
    case xla::PRED: {
      // A sum of booleans is "or", a product is "and".
      const bool either = kind == xla::ReductionKind::SUM || kind == xla::ReductionKind::MAX;
      ReduceInto<uint8_t>(either ? xla::ReductionKind::MAX : xla::ReductionKind::MIN, into, from,
                          r.bytes);
      return true;
    }
    default: return false;
  }
}

// The results by rank, or why there are none. Reduces in the order of the ranks.
absl::StatusOr<std::vector<Bytes>> Compute(const std::vector<Request>& requests,
                                           const std::vector<Bytes>& in) {
  const size_t n = in.size();
  const Request& first = requests[0];
  for (const Request& r : requests)
    if (r.op != first.op || r.reduction != first.reduction || r.type != first.type ||
        r.bytes != first.bytes)
      return absl::InvalidArgumentError("the ranks of a group run different collectives");
  std::vector<Bytes> out(n);
  const size_t part = first.bytes / n;
  auto slice = [&](const Bytes& b, size_t i) {
    return absl::MakeConstSpan(b).subspan(i * part, part);
  };
  if (first.op == Op::kReduce || first.op == Op::kReduceScatter) {
    Bytes sum = in[0];
    for (size_t i = 1; i < n; ++i)
      if (!ReduceBytes(first, sum.data(), in[i].data()))
        return absl::UnimplementedError("reduction of this element type between processes");
    for (size_t i = 0; i < n; ++i) {
      auto own = slice(sum, i);
      out[i] = first.op == Op::kReduce ? sum : Bytes(own.begin(), own.end());
    }
    return out;
  }
  for (size_t i = 0; i < n; ++i) {
    const int peer = requests[i].peer;
    if (peer >= static_cast<int>(n)) return absl::InvalidArgumentError("no such rank");
    switch (first.op) {
      case Op::kBroadcast: out[i] = in[std::max(peer, 0)]; break;
      case Op::kPermute: out[i] = peer < 0 ? Bytes(first.bytes) : in[peer]; break;
      case Op::kAllToAll:
        for (const Bytes& b : in) {
          auto own = slice(b, i);
          out[i].insert(out[i].end(), own.begin(), own.end());
        }
        break;
      default:
        for (const Bytes& b : in) out[i].insert(out[i].end(), b.begin(), b.end());
    }
  }
  return out;
}

// ---- The hub ----------------------------------------------------------------

class Hub {
 public:
  static absl::StatusOr<std::unique_ptr<Hub>> Listen(const Address& address) {
    int fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int yes = 1;
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (fd < 0 || bind(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.size) ||
        listen(fd, 1024)) {
      std::string why = std::strerror(errno);
      if (fd >= 0) close(fd);
      return absl::UnavailableError("cannot listen on coordinator_address: " + why);
    }
    return std::unique_ptr<Hub>(new Hub(fd));
  }
  ~Hub() {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      // The ranks of this process have their results first, and it may end then. The others get
      // theirs, but one that reads nothing does not keep this process for ever.
      answered_.wait_for(lock, std::chrono::seconds(10), [this] { return answering_ == 0; });
      shutdown(listener_, SHUT_RDWR);
      for (int fd : sockets_) shutdown(fd, SHUT_RDWR);
    }
    accepting_.join();
    for (std::thread& t : threads_) t.join();
    for (int fd : sockets_) close(fd);
    close(listener_);
  }

 private:
  explicit Hub(int listener) : listener_(listener), accepting_([this] { Accept(); }) {}

  void Accept() {
    for (int fd; (fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
      std::lock_guard<std::mutex> lock(mutex_);
      sockets_.push_back(fd);
      threads_.emplace_back([this, fd] { Welcome(fd); });
    }
  }

  // The rank that completes a group serves it.
  void Welcome(int fd) {
    int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    Hello hello;
    if (!ReceiveAll(fd, &hello, sizeof hello) || hello.ranks < 1 || hello.ranks > 65536 ||
        hello.rank < 0 || hello.rank >= hello.ranks || hello.name_bytes > (1 << 20))
      return;
    std::string name(hello.name_bytes, 0);
    if (!ReceiveAll(fd, name.data(), name.size())) return;
    std::vector<int> ranks;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto& group = groups_[name];
      group.resize(hello.ranks, -1);
      group[hello.rank] = fd;
      if (std::count(group.begin(), group.end(), -1) != 0) return;
      ranks = group;
      groups_.erase(name);
    }
    Serve(ranks);
    for (int rank : ranks) shutdown(rank, SHUT_RDWR);
  }

  // There is one while the ranks of a group are sent their results.
  class Answering {
   public:
    explicit Answering(Hub* hub) : hub_(hub) {
      std::lock_guard<std::mutex> lock(hub_->mutex_);
      ++hub_->answering_;
    }
    ~Answering() {
      std::lock_guard<std::mutex> lock(hub_->mutex_);
      --hub_->answering_;
      hub_->answered_.notify_all();
    }

   private:
    Hub* const hub_;
  };

  void Serve(const std::vector<int>& ranks) {
    for (;;) {
      std::vector<Request> requests(ranks.size());
      std::vector<Bytes> in(ranks.size());
      for (size_t i = 0; i < ranks.size(); ++i) {
        bool ok = ReceiveAll(ranks[i], &requests[i], sizeof(Request));
        if (ok) in[i].resize(requests[i].bytes);
        if (!ok || !ReceiveAll(ranks[i], in[i].data(), in[i].size()))
          return Fail(ranks, "rank " + std::to_string(i) + " of the group was lost");
      }
      Answering answering(this);
      auto out = Compute(requests, in);
      if (!out.ok()) return Fail(ranks, std::string(out.status().message()));
      for (size_t i = 0; i < ranks.size(); ++i) {
        Reply reply = {1, (*out)[i].size()};
        SendAll(ranks[i], &reply, sizeof reply);
        SendAll(ranks[i], (*out)[i].data(), (*out)[i].size());
      }
    }
  }
  static void Fail(const std::vector<int>& ranks, const std::string& text) {
    Reply reply = {0, text.size()};
    for (int fd : ranks) {
      SendAll(fd, &reply, sizeof reply);
      SendAll(fd, text.data(), text.size());
    }
  }

  const int listener_;
  std::mutex mutex_;  // guards what follows
  int answering_ = 0;
  std::condition_variable answered_;
  std::map<std::string, std::vector<int>> groups_;
  std::vector<int> sockets_;
  std::list<std::thread> threads_;
  std::thread accepting_;  // last: it uses the others
};

// ---- A rank -----------------------------------------------------------------

// A rank's connection to the hub.
class Rank {
 public:
  // Tries until the hub is there or the deadline has passed.
  static absl::StatusOr<std::unique_ptr<Rank>> Connect(const Address& address,
                                                       const std::string& group, int rank,
                                                       int ranks, int64_t timeout_seconds) {
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::seconds(timeout_seconds);
    for (;;) {
      int fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (fd >= 0 &&
          connect(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.size) == 0) {
        int yes = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        Hello hello = {rank, ranks, group.size()};
        if (SendAll(fd, &hello, sizeof hello) && SendAll(fd, group.data(), group.size()))
          return std::unique_ptr<Rank>(new Rank(fd));
      }
      std::string why = std::strerror(errno);
      if (fd >= 0) close(fd);
      if (std::chrono::steady_clock::now() > deadline)
        return absl::DeadlineExceededError("no coordinator after " +
                                           std::to_string(timeout_seconds) + " s: " + why);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  ~Rank() { close(fd_); }

  // Sends `request` and its bytes, and waits for the result.
  absl::StatusOr<Bytes> Call(const Request& request, const void* data) {
    Reply reply;
    if (!SendAll(fd_, &request, sizeof request) || !SendAll(fd_, data, request.bytes) ||
        !ReceiveAll(fd_, &reply, sizeof reply))
      return absl::UnavailableError("the coordinator (process 0) was lost");
    Bytes bytes(reply.bytes);
    if (!ReceiveAll(fd_, bytes.data(), bytes.size()))
      return absl::UnavailableError("the coordinator (process 0) was lost");
    if (!reply.ok) return absl::UnavailableError(std::string(bytes.begin(), bytes.end()));
    return bytes;
  }
  // How long a call waits for the other ranks.
  void SetTimeout(int64_t seconds) {
    timeval limit = {static_cast<time_t>(seconds), 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }

 private:
  explicit Rank(int fd) : fd_(fd) {}
  const int fd_;
};

}  // namespace
