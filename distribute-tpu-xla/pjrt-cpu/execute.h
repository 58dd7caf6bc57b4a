// Programs on devices.
#pragma once

#include "convert.h"

namespace {

PJRT_Error* LoadedDestroy(PJRT_LoadedExecutable_Destroy_Args* a) {
  delete a->executable;
  return nullptr;
}
PJRT_Error* LoadedGetExecutable(PJRT_LoadedExecutable_GetExecutable_Args* a) {
  auto& e = a->loaded_executable->exec;
  a->executable = WrapExecutable(e, e->GetExecutable());
  return nullptr;
}
PJRT_Error* LoadedDevices(PJRT_LoadedExecutable_AddressableDevices_Args* a) {
  a->addressable_devices = a->executable->devices.data();
  a->num_addressable_devices = a->executable->devices.size();
  return nullptr;
}
PJRT_Error* LoadedDeviceAssignment(PJRT_LoadedExecutable_GetDeviceAssignment_Args* a) {
  xla::DeviceAssignmentProto proto;
  a->executable->exec->device_assignment().Serialize(&proto);
  auto* h = new PJRT_DeviceAssignmentSerialized{proto.SerializeAsString()};
  a->serialized_bytes = h->bytes.data();
  a->serialized_bytes_size = h->bytes.size();
  a->serialized_device_assignment = h;
  a->serialized_device_assignment_deleter = +[](PJRT_DeviceAssignmentSerialized* p) { delete p; };
  return nullptr;
}
PJRT_Error* LoadedDelete(PJRT_LoadedExecutable_Delete_Args* a) {
  a->executable->exec->Delete();
  return nullptr;
}
PJRT_Error* LoadedIsDeleted(PJRT_LoadedExecutable_IsDeleted_Args* a) {
  a->is_deleted = a->executable->exec->IsDeleted();
  return nullptr;
}
// Refuses what XLA's CPU client would refuse only after it has announced the
// execution to its other devices: they would wait for it forever.
absl::Status CheckArguments(const PJRT_LoadedExecutable& e, PJRT_Buffer* const* args, size_t n,
                            const PJRT_Device* device, const absl::flat_hash_set<int>& kept) {
  if (n != e.parameters->size())
    return absl::InvalidArgumentError("the program expects " +
                                      std::to_string(e.parameters->size()) +
                                      " arguments, but was given " + std::to_string(n));
  for (size_t i = 0; i < n; ++i) {
    const Parameter& parameter = (*e.parameters)[i];
    auto fail = [&](const std::string& what) {
      return absl::InvalidArgumentError(
          "argument " + std::to_string(i) + " for device " +
          std::to_string(device->device->global_device_id().value()) + " " + what);
    };
    const PJRT_Buffer& b = *args[i];
    if (b.buffer->IsDeleted()) return fail("has been deleted or donated");
    if (b.buffer->device() != device->device) return fail("is on another device");
    const xla::PrimitiveType type = b.buffer->element_type();
    if (type != parameter.type || b.dims != parameter.dims)
      return fail("is " + xla::ShapeUtil::HumanString(xla::ShapeUtil::MakeShape(type, b.dims)) +
                  ", but the program expects " +
                  xla::ShapeUtil::HumanString(
                      xla::ShapeUtil::MakeShape(parameter.type, parameter.dims)));
    if (parameter.donated && !kept.contains(static_cast<int>(i)))
      for (size_t j = 0; j < n; ++j)
        if (j != i && args[j] == args[i])
          return fail("is donated, but also given as argument " + std::to_string(j));
  }
  return absl::OkStatus();
}
PJRT_Error* LoadedExecute(PJRT_LoadedExecutable_Execute_Args* a) {
  xla::ExecuteOptions options;
  options.launch_id = a->options->launch_id;
  for (size_t i = 0; i < a->options->num_non_donatable_input_indices; ++i)
    options.non_donatable_input_indices.insert(
        static_cast<int>(a->options->non_donatable_input_indices[i]));
  if (a->options->num_send_ops || a->options->num_recv_ops)
    return Err(absl::UnimplementedError("send/recv callbacks"));
  std::vector<std::vector<xla::PjRtBuffer*>> args(a->num_devices);
  for (size_t d = 0; d < a->num_devices; ++d)
    for (size_t i = 0; i < a->num_args; ++i)
      args[d].push_back(a->argument_lists[d][i]->buffer.get());

  if (a->executable->parameters && a->execute_device == nullptr) {
    if (a->num_devices != a->executable->devices.size())
      return Err(absl::InvalidArgumentError("num_devices is not that of the program"));
    for (size_t d = 0; d < a->num_devices; ++d)
      TRY(CheckArguments(*a->executable, a->argument_lists[d], a->num_args,
                         a->executable->devices[d], options.non_donatable_input_indices));
  }

  const bool want_events = a->device_complete_events != nullptr;
  std::vector<std::vector<std::unique_ptr<xla::PjRtBuffer>>> out;
  std::optional<std::vector<xla::Future<>>> futures;
  if (a->execute_device == nullptr) {
    if (want_events) futures.emplace();
    TRY_SET(out, a->executable->exec->Execute(args, options, futures));
  } else {
    if (a->num_devices != 1)
      return Err(absl::InvalidArgumentError("execute_device needs num_devices == 1"));
    std::optional<xla::Future<>> one;
    const auto& e = a->executable->exec;
    TRY_SET(auto r, e->num_replicas() == 1 && e->num_partitions() == 1
                        ? e->ExecutePortable(args[0], a->execute_device->device, options, one, want_events)
                        : e->ExecuteSharded(args[0], a->execute_device->device, options, one, want_events));
    out.push_back(std::move(r));
    if (want_events) futures.emplace().push_back(std::move(*one));
  }
  for (size_t d = 0; d < out.size(); ++d)
    for (size_t i = 0; i < out[d].size(); ++i)
      a->output_lists[d][i] = WrapBuffer(std::move(out[d][i]), a->executable->client);
  if (want_events)
    for (size_t d = 0; d < a->num_devices; ++d)
      a->device_complete_events[d] = WrapFuture(std::move((*futures)[d]));
  return nullptr;
}
PJRT_Error* ContextCreate(PJRT_ExecuteContext_Create_Args* a) {
  a->context = new PJRT_ExecuteContext;
  return nullptr;
}
PJRT_Error* ContextDestroy(PJRT_ExecuteContext_Destroy_Args* a) {
  delete a->context;
  return nullptr;
}

}  // namespace
