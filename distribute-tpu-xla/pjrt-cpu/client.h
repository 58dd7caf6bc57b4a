// Clients: devices, compilation, buffers from the host.
#pragma once

#include "options.h"

namespace {

PJRT_Error* ClientCreate(PJRT_Client_Create_Args* a) {
  ClientOptions options;
  options.devices = DefaultDeviceCount();
  TRY(ReadOptions(a->create_options, a->num_options, &options));
  auto c = std::make_unique<PJRT_Client>();
  TRY_SET(c->client, NewCpuClient(options));
  for (auto* d : c->client->devices()) {
    auto w = std::make_unique<PJRT_Device>();
    w->device = d;
    w->desc.desc = &d->description();
    w->desc.attributes.Fill(d->Attributes());
    c->device_of[d] = w.get();
    c->devices.push_back(w.get());
    if (d->IsAddressable()) c->addressable.push_back(w.get());
    c->owned_devices.push_back(std::move(w));
  }
  for (auto* m : c->client->memory_spaces()) {
    auto w = std::make_unique<PJRT_Memory>();
    w->space = m;
    for (auto* d : m->devices()) w->devices.push_back(c->device_of.at(d));
    c->memory_of[m] = w.get();
    c->memories.push_back(w.get());
    c->owned_memories.push_back(std::move(w));
  }
  for (auto* w : c->addressable) {
    for (auto* m : w->device->memory_spaces()) w->memories.push_back(c->memory_of.at(m));
    auto def = w->device->default_memory_space();
    if (def.ok()) w->default_memory = c->memory_of.at(*def);
  }
  TRY_SET(const xla::PjRtTopologyDescription* t, c->client->GetTopologyDescription());
  c->topology.client = c->client.get();
  FillTopology(&c->topology, t);
  a->client = c.release();
  return nullptr;
}
PJRT_Error* ClientDestroy(PJRT_Client_Destroy_Args* a) {
  delete a->client;
  return nullptr;
}
PJRT_Error* ClientPlatformName(PJRT_Client_PlatformName_Args* a) {
  a->platform_name = a->client->client->platform_name().data();
  a->platform_name_size = a->client->client->platform_name().size();
  return nullptr;
}
PJRT_Error* ClientPlatformVersion(PJRT_Client_PlatformVersion_Args* a) {
  a->platform_version = a->client->client->platform_version().data();
  a->platform_version_size = a->client->client->platform_version().size();
  return nullptr;
}
PJRT_Error* ClientProcessIndex(PJRT_Client_ProcessIndex_Args* a) {
  a->process_index = a->client->client->process_index();
  return nullptr;
}
PJRT_Error* ClientTopology(PJRT_Client_TopologyDescription_Args* a) {
  a->topology = &a->client->topology;
  return nullptr;
}
PJRT_Error* ClientDevices(PJRT_Client_Devices_Args* a) {
  a->devices = a->client->devices.data();
  a->num_devices = a->client->devices.size();
  return nullptr;
}
PJRT_Error* ClientAddressableDevices(PJRT_Client_AddressableDevices_Args* a) {
  a->addressable_devices = a->client->addressable.data();
  a->num_addressable_devices = a->client->addressable.size();
  return nullptr;
}
PJRT_Error* ClientLookupDevice(PJRT_Client_LookupDevice_Args* a) {
  TRY_SET(xla::PjRtDevice* d, a->client->client->LookupDevice(xla::PjRtGlobalDeviceId(a->id)));
  a->device = a->client->device_of.at(d);
  return nullptr;
}
PJRT_Error* ClientLookupAddressableDevice(PJRT_Client_LookupAddressableDevice_Args* a) {
  TRY_SET(xla::PjRtDevice* d, a->client->client->LookupAddressableDevice(
                                  xla::PjRtLocalDeviceId(a->local_hardware_id)));
  a->addressable_device = a->client->device_of.at(d);
  return nullptr;
}
PJRT_Error* ClientAddressableMemories(PJRT_Client_AddressableMemories_Args* a) {
  a->addressable_memories = a->client->memories.data();
  a->num_addressable_memories = a->client->memories.size();
  return nullptr;
}
// XLA's CPU client numbers devices from 0 here, but devices of another process
// begin at 2048. A program for more devices than this process has runs on all
// processes' devices in their order.
absl::StatusOr<xla::DeviceAssignment> DefaultAssignment(xla::PjRtClient& client, int replicas,
                                                        int partitions) {
  if (replicas < 1 || partitions < 1 || int64_t{replicas} * partitions > client.device_count())
    return absl::InvalidArgumentError(
        std::to_string(replicas) + " replicas of " + std::to_string(partitions) +
        " partitions do not fit " + std::to_string(client.device_count()) + " devices");
  if (replicas * partitions <= client.addressable_device_count())
    return client.GetDefaultDeviceAssignment(replicas, partitions);
  xla::DeviceAssignment assignment(replicas, partitions);
  for (int r = 0; r < replicas; ++r)
    for (int p = 0; p < partitions; ++p)
      assignment(r, p) = client.devices()[r * partitions + p]->global_device_id().value();
  return assignment;
}
PJRT_Error* ClientCompile(PJRT_Client_Compile_Args* a) {
  TRY_SET(xla::CompileOptions options, ParseOptions(a->compile_options, a->compile_options_size));
  TRY_SET(xla::XlaComputation program, ParseProgram(a->program));
  auto& build = options.executable_build_options;
  if (!build.has_device_assignment() && !options.compile_portable_executable) {
    TRY_SET(xla::DeviceAssignment assignment,
            DefaultAssignment(*a->client->client, build.num_replicas(), build.num_partitions()));
    build.set_device_assignment(assignment);
  }
  TRY_SET(auto exec, a->client->client->CompileAndLoad(program, std::move(options)));
  a->executable = WrapLoaded(std::move(exec), a->client);
  return nullptr;
}
PJRT_Error* ClientDefaultDeviceAssignment(PJRT_Client_DefaultDeviceAssignment_Args* a) {
  size_t need = static_cast<size_t>(a->num_replicas) * a->num_partitions;
  if (a->default_assignment_size < need)
    return Err(absl::FailedPreconditionError("default_assignment is too small"));
  TRY_SET(xla::DeviceAssignment da,
          DefaultAssignment(*a->client->client, a->num_replicas, a->num_partitions));
  for (int r = 0; r < a->num_replicas; ++r)
    for (int p = 0; p < a->num_partitions; ++p)
      a->default_assignment[r * a->num_partitions + p] = static_cast<int>(da(r, p));
  return nullptr;
}
PJRT_Error* ClientBufferFromHost(PJRT_Client_BufferFromHostBuffer_Args* a) {
  xla::PjRtMemorySpace* space = a->memory ? a->memory->space : nullptr;
  if (space == nullptr) {
    if (a->device == nullptr || a->device->default_memory == nullptr)
      return Err(absl::InvalidArgumentError("neither memory nor addressable device given"));
    space = a->device->default_memory->space;
  }
  if (static_cast<unsigned>(a->host_buffer_semantics) > PJRT_HostBufferSemantics_kMutableZeroCopy)
    return Err(absl::InvalidArgumentError("unknown host_buffer_semantics"));
  TRY_SET(std::optional<xla::Layout> layout, LayoutFromC(a->device_layout));
  std::optional<absl::Span<const int64_t>> strides;
  if (a->num_byte_strides != 0) strides.emplace(a->byte_strides, a->num_byte_strides);
  using S = xla::PjRtClient::HostBufferSemantics;
  constexpr S kSemantics[] = {S::kImmutableOnlyDuringCall, S::kImmutableUntilTransferCompletes,
                              S::kImmutableZeroCopy, S::kMutableZeroCopy};
  auto [promise, future] = xla::MakePromise<>();
  TRY_SET(auto buffer,
          a->client->client->BufferFromHostBuffer(
              a->data, FromC(a->type), absl::MakeConstSpan(a->dims, a->num_dims), strides,
              kSemantics[a->host_buffer_semantics],
              [p = std::move(promise)]() mutable { p.Set(); }, space,
              layout ? &*layout : nullptr));
  a->done_with_host_buffer = WrapFuture(std::move(future));
  a->buffer = WrapBuffer(std::move(buffer), a->client);
  return nullptr;
}

}  // namespace
