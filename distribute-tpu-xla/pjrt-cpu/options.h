// Options of clients, and the making of XLA's client from them.
#pragma once

#include "collectives.h"
#include "xla/pjrt/plugin/xla_cpu/cpu_topology.h"
#include "xla/pjrt/plugin/xla_cpu/cpu_topology_description.h"

namespace {

// TRY_SET for functions that return absl::StatusOr.
#define TRY_STATUS(decl, expr)                                       \
  auto CAT(r_, __LINE__) = (expr);                                   \
  if (!CAT(r_, __LINE__).ok()) return CAT(r_, __LINE__).status();    \
  decl = *std::move(CAT(r_, __LINE__))

int64_t DefaultDeviceCount() {
  const char* e = std::getenv("PJRT_CPU_DEVICE_COUNT");
  long n = e ? std::strtol(e, nullptr, 10) : 8;
  return n > 0 ? n : 8;
}

// What a client is made with.
struct ClientOptions {
  int64_t devices = 8;
  bool asynchronous = true;
  Node node;
};

absl::StatusOr<std::unique_ptr<xla::PjRtClient>> NewCpuClient(const ClientOptions& options) {
  xla::CpuClientOptions o;
  o.cpu_device_count = static_cast<int>(options.devices);
  o.asynchronous = options.asynchronous;
  if (options.node.count == 1) return xla::GetXlaPjrtCpuClient(std::move(o));

  // Only the client knows the attributes of this machine.
  TRY_STATUS(auto alone, xla::GetXlaPjrtCpuClient(o));
  TRY_STATUS(const xla::PjRtTopologyDescription* local, alone->GetTopologyDescription());
  const auto* cpu = static_cast<const xla::CpuTopologyDescription*>(local);
  std::vector<xla::CpuTopology::CpuDevice> devices;
  for (int p = 0; p < options.node.count; ++p)
    for (int d = 0; d < options.devices; ++d) devices.push_back({p, d});
  xla::CpuTopologyDescription topology(cpu->platform_id(), cpu->platform_name(),
                                       cpu->platform_version(), std::move(devices),
                                       cpu->cpu_topology().machine_attributes());
  TRY_STATUS(o.collectives, HubCollectives::Create(options.node, options.devices));
  o.cpu_device_count = static_cast<int>(options.devices * options.node.count);
  o.process_id = static_cast<int>(options.node.id);
  o.topology = &topology;
  return xla::GetXlaPjrtCpuClient(std::move(o));
}

absl::Status ReadOptions(const PJRT_NamedValue* v, size_t n, ClientOptions* o) {
  for (size_t i = 0; i < n; ++i) {
    const std::string name(v[i].name, v[i].name_size);
    const std::map<std::string, int64_t*> integers = {
        {"cpu_device_count", &o->devices},
        {"node_id", &o->node.id},
        {"num_nodes", &o->node.count},
        {"initialization_timeout_seconds", &o->node.timeout_seconds}};
    const auto integer = integers.find(name);
    if (integer != integers.end() && v[i].type == PJRT_NamedValue_kInt64)
      *integer->second = v[i].int64_value;
    else if (name == "asynchronous" && v[i].type == PJRT_NamedValue_kBool)
      o->asynchronous = v[i].bool_value;
    else if (name == "coordinator_address" && v[i].type == PJRT_NamedValue_kString)
      o->node.coordinator.assign(v[i].string_value, v[i].value_size);
    else
      return absl::InvalidArgumentError("unknown option or wrong type: " + name);
  }
  if (o->devices < 1 || o->devices > 1024)
    return absl::InvalidArgumentError("cpu_device_count must be in 1..1024");
  if (o->node.count < 1 || o->node.count > 1024 || o->node.id < 0 || o->node.id >= o->node.count)
    return absl::InvalidArgumentError("num_nodes must be in 1..1024 and node_id below it");
  if (o->node.count > 1 && o->node.coordinator.empty())
    return absl::InvalidArgumentError("several nodes need a coordinator_address");
  return absl::OkStatus();
}

}  // namespace
