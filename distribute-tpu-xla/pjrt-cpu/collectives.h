// XLA's interface to collectives, over the hub.
#pragma once

#include "hub.h"
#include "xla/backends/cpu/collectives/cpu_collectives.h"
#include "xla/core/collectives/clique_key.h"
#include "xla/core/collectives/communicator.h"

namespace {

// One of several processes that share their devices.
struct Node {
  int64_t id = 0;     // client option "node_id"
  int64_t count = 1;  // client option "num_nodes"
  std::string coordinator;  // client option "coordinator_address"
  int64_t timeout_seconds = 120;  // client option "initialization_timeout_seconds"
};

class HubCommunicator : public xla::Communicator {
 public:
  using Buffer = stream_executor::DeviceAddressBase;

  HubCommunicator(std::unique_ptr<Rank> rank, size_t ranks)
      : rank_(std::move(rank)), ranks_(ranks) {}

  xla::Future<> AllReduce(Buffer send, Buffer recv, xla::PrimitiveType type, size_t,
                          xla::ReductionKind kind, const Executor&) override {
    return Run({Op::kReduce, static_cast<int>(kind), type, -1, send.size()}, send.opaque(), recv);
  }
  xla::Future<> Broadcast(Buffer send, Buffer recv, xla::PrimitiveType type, size_t,
                          xla::RankId root, const Executor&) override {
    const int peer = static_cast<int>(root.value());
    return Run({Op::kBroadcast, 0, type, peer, recv.size()}, send.opaque(), recv);
  }
  xla::Future<> ReduceScatter(Buffer send, Buffer recv, xla::PrimitiveType type, size_t,
                              xla::ReductionKind kind, const Executor&) override {
    return Run({Op::kReduceScatter, static_cast<int>(kind), type, -1, send.size()},
               send.opaque(), recv);
  }
  xla::Future<> AllGather(Buffer send, Buffer recv, xla::PrimitiveType type, size_t,
                          const Executor&) override {
    return Run({Op::kGather, 0, type, -1, send.size()}, send.opaque(), recv);
  }
  xla::Future<> CollectivePermute(Buffer send, Buffer recv, xla::PrimitiveType type, size_t,
                                  std::optional<xla::RankId> source,
                                  absl::Span<const xla::RankId>, const Executor&) override {
    const int peer = source ? static_cast<int>(source->value()) : -1;
    return Run({Op::kPermute, 0, type, peer, send.size()}, send.opaque(), recv);
  }
  xla::Future<> AllToAll(absl::InlinedVector<Buffer, 4> send, absl::InlinedVector<Buffer, 4> recv,
                         xla::PrimitiveType type, size_t, const Executor&) override {
    Bytes all;
    for (const Buffer& b : send) {
      const char* p = static_cast<const char*>(b.opaque());
      all.insert(all.end(), p, p + b.size());
    }
    auto got = Call({Op::kAllToAll, 0, type, -1, all.size()}, all.data());
    if (!got.ok()) return xla::Future<>(got.status());
    size_t offset = 0;
    for (const Buffer& b : recv) {
      if (offset + b.size() > got->size()) return xla::Future<>(absl::InternalError("too few"));
      std::memcpy(b.opaque(), got->data() + offset, b.size());
      offset += b.size();
    }
    return xla::Future<>(absl::OkStatus());
  }
  xla::Future<> Send(Buffer, xla::PrimitiveType, size_t, xla::RankId, const Executor&) override {
    return xla::Future<>(absl::UnimplementedError("send between processes"));
  }
  xla::Future<> Recv(Buffer, xla::PrimitiveType, size_t, xla::RankId, const Executor&) override {
    return xla::Future<>(absl::UnimplementedError("receive between processes"));
  }
  absl::StatusOr<size_t> NumRanks() const override { return ranks_; }
  std::string ToString() const override { return "HubCommunicator"; }

 private:
  absl::StatusOr<Bytes> Call(const Request& request, const void* data) {
    std::lock_guard<std::mutex> lock(mutex_);
    return rank_->Call(request, data);
  }
  xla::Future<> Run(const Request& request, const void* data, Buffer recv) {
    auto got = Call(request, data);
    if (!got.ok()) return xla::Future<>(got.status());
    if (got->size() != recv.size())
      return xla::Future<>(absl::InternalError("a collective's result has another size"));
    std::memcpy(recv.opaque(), got->data(), got->size());
    return xla::Future<>(absl::OkStatus());
  }

  std::mutex mutex_;
  std::unique_ptr<Rank> rank_;
  const size_t ranks_;
};

class HubCollectives : public xla::cpu::CpuCollectives {
 public:
  // Waits until all processes are there, each with as many devices.
  static absl::StatusOr<std::shared_ptr<HubCollectives>> Create(const Node& node,
                                                                int64_t devices) {
    auto c = std::make_shared<HubCollectives>();
    auto address = Resolve(node.coordinator);
    if (!address.ok()) return address.status();
    c->address_ = *address;
    c->timeout_seconds_ = node.timeout_seconds;
    if (node.id == 0) {
      auto hub = Hub::Listen(c->address_);
      if (!hub.ok()) return hub.status();
      c->hub_ = *std::move(hub);
    }
    auto all = Rank::Connect(c->address_, "processes", static_cast<int>(node.id),
                             static_cast<int>(node.count), node.timeout_seconds);
    if (!all.ok()) return all.status();
    (*all)->SetTimeout(node.timeout_seconds);
    auto counts = (*all)->Call({Op::kGather, 0, xla::S64, -1, sizeof devices}, &devices);
    if (!counts.ok())
      return absl::DeadlineExceededError("not all of " + std::to_string(node.count) +
                                         " processes have come: " +
                                         std::string(counts.status().message()));
    for (int64_t i = 0; i < node.count; ++i)
      if (std::memcmp(counts->data() + i * sizeof devices, &devices, sizeof devices) != 0)
        return absl::InvalidArgumentError("the processes have different cpu_device_count");
    return c;
  }

  absl::StatusOr<std::vector<std::unique_ptr<xla::Communicator>>> CreateCommunicators(
      const xla::CliqueKey& key, const std::optional<xla::CliqueIds>&,
      absl::Span<const DeviceRank> ranks, const Config&) override {
    std::string name = "devices";
    for (auto id : key.devices()) name += " " + std::to_string(id.value());
    std::vector<std::unique_ptr<xla::Communicator>> out;
    for (const DeviceRank& r : ranks) {
      auto rank = Rank::Connect(address_, name, static_cast<int>(r.rank.value()),
                                static_cast<int>(key.num_devices()), timeout_seconds_);
      if (!rank.ok()) return rank.status();
      out.push_back(std::make_unique<HubCommunicator>(*std::move(rank), key.num_devices()));
    }
    return out;
  }

 private:
  Address address_;
  int64_t timeout_seconds_;
  std::unique_ptr<Hub> hub_;  // in process 0
};

}  // namespace
