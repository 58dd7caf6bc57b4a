// What the opaque types of the C API are here, and how errors travel.
#pragma once

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "xla/future.h"
#include "xla/hlo/builder/xla_computation.h"
#include "xla/hlo/ir/hlo_module.h"
#include "xla/layout_util.h"
#include "xla/literal.h"
#include "xla/pjrt/c/pjrt_c_api.h"
#include "xla/pjrt/c/pjrt_c_api_layouts_extension.h"
#include "xla/pjrt/pjrt_client.h"
#include "xla/pjrt/pjrt_compiler.h"
#include "xla/pjrt/pjrt_executable.h"
#include "xla/pjrt/pjrt_layout.h"
#include "xla/pjrt/plugin/xla_cpu/xla_cpu_pjrt_client.h"
#include "xla/pjrt/proto/compile_options.pb.h"
#include "xla/shape_util.h"

namespace xla {
// Declared in xla/pjrt/mlir_to_hlo.h, which cannot be included (see stubs/).
absl::Status ParseMlirModuleStringAndConvertToXlaComputation(
    std::string_view text, XlaComputation& out, bool return_tuple, bool use_tuple_args);
}  // namespace xla

struct PJRT_Error {
  absl::Status status;
};

struct PJRT_Event {
  xla::Future<> future;
  std::optional<xla::Promise<>> promise;  // only for PJRT_Event_Create
};

// Owns what an array of PJRT_NamedValue points to.
struct NamedValues {
  std::map<std::string, xla::PjRtValueType> store;
  std::vector<PJRT_NamedValue> view;

  template <class Map>
  void Fill(const Map& in) {
    store.clear();
    view.clear();
    for (const auto& [k, v] : in) store.emplace(k, v);
    for (const auto& [k, v] : store) {
      PJRT_NamedValue n;
      std::memset(&n, 0, sizeof n);
      n.struct_size = PJRT_NamedValue_STRUCT_SIZE;
      n.name = k.data();
      n.name_size = k.size();
      n.value_size = 1;
      if (auto* s = std::get_if<std::string>(&v)) {
        n.type = PJRT_NamedValue_kString;
        n.string_value = s->data();
        n.value_size = s->size();
      } else if (auto* b = std::get_if<bool>(&v)) {
        n.type = PJRT_NamedValue_kBool;
        n.bool_value = *b;
      } else if (auto* i = std::get_if<int64_t>(&v)) {
        n.type = PJRT_NamedValue_kInt64;
        n.int64_value = *i;
      } else if (auto* l = std::get_if<std::vector<int64_t>>(&v)) {
        n.type = PJRT_NamedValue_kInt64List;
        n.int64_array_value = l->data();
        n.value_size = l->size();
      } else {
        n.type = PJRT_NamedValue_kFloat;
        n.float_value = std::get<float>(v);
      }
      view.push_back(n);
    }
  }
};

struct PJRT_DeviceDescription {
  const xla::PjRtDeviceDescription* desc;
  std::unique_ptr<const xla::PjRtDeviceDescription> owned;
  NamedValues attributes;
};

struct PJRT_Memory {
  xla::PjRtMemorySpace* space;
  std::vector<PJRT_Device*> devices;
};

struct PJRT_Device {
  xla::PjRtDevice* device;
  PJRT_DeviceDescription desc;
  std::vector<PJRT_Memory*> memories;
  PJRT_Memory* default_memory = nullptr;
};

struct PJRT_TopologyDescription {
  xla::PjRtClient* client = nullptr;        // compiles for this topology
  std::unique_ptr<xla::PjRtClient> owned;   // set for named topologies
  const xla::PjRtTopologyDescription* topology = nullptr;
  std::vector<std::unique_ptr<PJRT_DeviceDescription>> descs;
  std::vector<PJRT_DeviceDescription*> desc_ptrs;
  NamedValues attributes;
};

struct PJRT_Client {
  std::unique_ptr<xla::PjRtClient> client;
  std::vector<std::unique_ptr<PJRT_Device>> owned_devices;
  std::vector<std::unique_ptr<PJRT_Memory>> owned_memories;
  std::vector<PJRT_Device*> devices, addressable;
  std::vector<PJRT_Memory*> memories;
  std::map<const xla::PjRtDevice*, PJRT_Device*> device_of;
  std::map<const xla::PjRtMemorySpace*, PJRT_Memory*> memory_of;
  PJRT_TopologyDescription topology;
};

struct PJRT_Executable {
  std::shared_ptr<const void> keep;  // the loaded or unloaded executable
  xla::PjRtExecutable* exec = nullptr;
  // Everything below is made at the first question and then never changed: its
  // address is lent to the caller. The mutex is held while it is made.
  std::mutex mutex;
  std::string fingerprint;
  std::string program;
  NamedValues cost;
  std::vector<PJRT_Buffer_Type> types;
  std::vector<int64_t> dims;
  std::vector<size_t> ranks;
  std::vector<std::string> kinds;
  std::vector<const char*> kind_ptrs;
  std::vector<size_t> kind_sizes;
  std::vector<PJRT_Layouts_MemoryLayout*> layouts;
};

// What a program expects of an argument.
struct Parameter {
  xla::PrimitiveType type;
  std::vector<int64_t> dims;
  bool donated;  // unless the caller forbids it
};

struct PJRT_LoadedExecutable {
  std::shared_ptr<xla::PjRtLoadedExecutable> exec;
  PJRT_Client* client;
  std::vector<PJRT_Device*> devices;
  std::optional<std::vector<Parameter>> parameters;  // if they are known
};

struct PJRT_Buffer {
  std::unique_ptr<xla::PjRtBuffer> buffer;
  PJRT_Client* client;
  std::vector<int64_t> dims;
  std::vector<int64_t> minor_to_major;
  std::mutex mutex;  // held to change `refs`
  std::vector<std::unique_ptr<xla::PjRtBuffer::ExternalReference>> refs;
};

struct PJRT_SerializedExecutable { std::string bytes; };
struct PJRT_SerializedTopology { std::string bytes; };
struct PJRT_SerializedCompileOptions { std::string bytes; };
struct PJRT_DeviceAssignmentSerialized { std::string bytes; };
struct PJRT_ExecuteContext { xla::ExecuteContext context; };
struct PJRT_Layouts_MemoryLayout { std::string text; };
struct PJRT_Layouts_SerializedLayout {};

namespace {

// True when the caller's struct is new enough to have `field`.
#define HAS(args, field)                                                     \
  ((args)->struct_size >= offsetof(std::remove_reference_t<decltype(*(args))>, field) + \
                              sizeof((args)->field))

PJRT_Error* Err(absl::Status s) { return s.ok() ? nullptr : new PJRT_Error{std::move(s)}; }
#define TRY(expr)                                        \
  do {                                                   \
    absl::Status s_ = (expr);                            \
    if (!s_.ok()) return Err(std::move(s_));             \
  } while (0)
#define CAT2(a, b) a##b
#define CAT(a, b) CAT2(a, b)
#define TRY_SET(decl, expr)                                              \
  auto CAT(r_, __LINE__) = (expr);                                       \
  if (!CAT(r_, __LINE__).ok()) return Err(CAT(r_, __LINE__).status());   \
  decl = *std::move(CAT(r_, __LINE__))

}  // namespace
