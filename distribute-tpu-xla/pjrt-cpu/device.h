// Devices, their descriptions and memories.
#pragma once

#include "convert.h"

namespace {

PJRT_Error* DescId(PJRT_DeviceDescription_Id_Args* a) {
  a->id = a->device_description->desc->id();
  return nullptr;
}
PJRT_Error* DescProcessIndex(PJRT_DeviceDescription_ProcessIndex_Args* a) {
  a->process_index = a->device_description->desc->process_index();
  return nullptr;
}
PJRT_Error* DescAttributes(PJRT_DeviceDescription_Attributes_Args* a) {
  a->attributes = a->device_description->attributes.view.data();
  a->num_attributes = a->device_description->attributes.view.size();
  return nullptr;
}
PJRT_Error* DescKind(PJRT_DeviceDescription_Kind_Args* a) {
  auto s = a->device_description->desc->device_kind();
  a->device_kind = s.data();
  a->device_kind_size = s.size();
  return nullptr;
}
PJRT_Error* DescDebugString(PJRT_DeviceDescription_DebugString_Args* a) {
  auto s = a->device_description->desc->DebugString();
  a->debug_string = s.data();
  a->debug_string_size = s.size();
  return nullptr;
}
PJRT_Error* DescToString(PJRT_DeviceDescription_ToString_Args* a) {
  auto s = a->device_description->desc->ToString();
  a->to_string = s.data();
  a->to_string_size = s.size();
  return nullptr;
}
PJRT_Error* DeviceGetDescription(PJRT_Device_GetDescription_Args* a) {
  a->device_description = &a->device->desc;
  return nullptr;
}
PJRT_Error* DeviceIsAddressable(PJRT_Device_IsAddressable_Args* a) {
  a->is_addressable = a->device->device->IsAddressable();
  return nullptr;
}
PJRT_Error* DeviceLocalHardwareId(PJRT_Device_LocalHardwareId_Args* a) {
  a->local_hardware_id = a->device->device->local_hardware_id().value();
  return nullptr;
}
PJRT_Error* DeviceAddressableMemories(PJRT_Device_AddressableMemories_Args* a) {
  a->memories = a->device->memories.data();
  a->num_memories = a->device->memories.size();
  return nullptr;
}
PJRT_Error* DeviceDefaultMemory(PJRT_Device_DefaultMemory_Args* a) {
  if (!a->device->default_memory) return Err(absl::NotFoundError("device has no default memory"));
  a->memory = a->device->default_memory;
  return nullptr;
}
PJRT_Error* MemoryId(PJRT_Memory_Id_Args* a) {
  a->id = a->memory->space->id();
  return nullptr;
}
PJRT_Error* MemoryKind(PJRT_Memory_Kind_Args* a) {
  auto s = a->memory->space->kind();
  a->kind = s.data();
  a->kind_size = s.size();
  return nullptr;
}
PJRT_Error* MemoryKindId(PJRT_Memory_Kind_Id_Args* a) {
  a->kind_id = a->memory->space->kind_id();
  return nullptr;
}
PJRT_Error* MemoryDebugString(PJRT_Memory_DebugString_Args* a) {
  auto s = a->memory->space->DebugString();
  a->debug_string = s.data();
  a->debug_string_size = s.size();
  return nullptr;
}
PJRT_Error* MemoryToString(PJRT_Memory_ToString_Args* a) {
  auto s = a->memory->space->ToString();
  a->to_string = s.data();
  a->to_string_size = s.size();
  return nullptr;
}
PJRT_Error* MemoryDevices(PJRT_Memory_AddressableByDevices_Args* a) {
  a->devices = a->memory->devices.data();
  a->num_devices = a->memory->devices.size();
  return nullptr;
}

}  // namespace
