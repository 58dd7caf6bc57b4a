// Topologies by name, and compilation ahead of time.
#pragma once

#include "options.h"

namespace {

// The topology name is "", "cpu" or "cpu:<devices>".
PJRT_Error* TopologyCreate(PJRT_TopologyDescription_Create_Args* a) {
  std::string name(a->topology_name, a->topology_name_size);
  ClientOptions options;
  options.devices = DefaultDeviceCount();
  const bool counted = name.rfind("cpu:", 0) == 0;
  char* end = nullptr;
  if (counted) options.devices = std::strtol(name.c_str() + 4, &end, 10);
  if (counted ? *end != 0 || name.size() == 4 : !name.empty() && name != "cpu")
    return Err(absl::InvalidArgumentError("topology name must be cpu:<devices>, got " + name));
  TRY(ReadOptions(a->create_options, a->num_options, &options));
  options.node = Node();  // A topology has no other processes to wait for.
  auto t = std::make_unique<PJRT_TopologyDescription>();
  TRY_SET(t->owned, NewCpuClient(options));
  t->client = t->owned.get();
  TRY_SET(const xla::PjRtTopologyDescription* x, t->client->GetTopologyDescription());
  FillTopology(t.get(), x);
  a->topology = t.release();
  return nullptr;
}
PJRT_Error* TopologyDestroy(PJRT_TopologyDescription_Destroy_Args* a) {
  if (a->topology && a->topology->owned) delete a->topology;  // a client's own is not ours to free
  return nullptr;
}
PJRT_Error* TopologyPlatformName(PJRT_TopologyDescription_PlatformName_Args* a) {
  a->platform_name = a->topology->topology->platform_name().data();
  a->platform_name_size = a->topology->topology->platform_name().size();
  return nullptr;
}
PJRT_Error* TopologyPlatformVersion(PJRT_TopologyDescription_PlatformVersion_Args* a) {
  a->platform_version = a->topology->topology->platform_version().data();
  a->platform_version_size = a->topology->topology->platform_version().size();
  return nullptr;
}
PJRT_Error* TopologyDescs(PJRT_TopologyDescription_GetDeviceDescriptions_Args* a) {
  a->descriptions = a->topology->desc_ptrs.data();
  a->num_descriptions = a->topology->desc_ptrs.size();
  return nullptr;
}
PJRT_Error* TopologySerialize(PJRT_TopologyDescription_Serialize_Args* a) {
  TRY_SET(std::string s, a->topology->topology->Serialize());
  auto* h = new PJRT_SerializedTopology{std::move(s)};
  a->serialized_bytes = h->bytes.data();
  a->serialized_bytes_size = h->bytes.size();
  a->serialized_topology = h;
  a->serialized_topology_deleter = +[](PJRT_SerializedTopology* p) { delete p; };
  return nullptr;
}
PJRT_Error* TopologyAttributes(PJRT_TopologyDescription_Attributes_Args* a) {
  a->attributes = a->topology->attributes.view.data();
  a->num_attributes = a->topology->attributes.view.size();
  return nullptr;
}
PJRT_Error* Compile(PJRT_Compile_Args* a) {
  TRY_SET(xla::CompileOptions options, ParseOptions(a->compile_options, a->compile_options_size));
  TRY_SET(xla::XlaComputation program, ParseProgram(a->program));
  xla::PjRtClient* client = a->client ? a->client->client.get() : a->topology->client;
  // The compilers of real devices check this too.
  const int64_t needed = static_cast<int64_t>(options.executable_build_options.num_replicas()) *
                         options.executable_build_options.num_partitions();
  if (needed < 1 || needed > client->device_count())
    return Err(absl::InvalidArgumentError(
        "the program needs " + std::to_string(needed) + " devices, the topology has " +
        std::to_string(client->device_count())));
  TRY_SET(auto exec, client->Compile(program, std::move(options)));
  std::shared_ptr<xla::PjRtExecutable> shared = std::move(exec);
  a->executable = WrapExecutable(shared, shared.get());
  return nullptr;
}

}  // namespace
