// Arrays on devices.
#pragma once

#include "convert.h"

namespace {

PJRT_Error* BufferDestroy(PJRT_Buffer_Destroy_Args* a) {
  delete a->buffer;
  return nullptr;
}
PJRT_Error* BufferType(PJRT_Buffer_ElementType_Args* a) {
  a->type = ToC(a->buffer->buffer->element_type());
  return nullptr;
}
PJRT_Error* BufferDims(PJRT_Buffer_Dimensions_Args* a) {
  a->dims = a->buffer->dims.data();
  a->num_dims = a->buffer->dims.size();
  return nullptr;
}
PJRT_Error* BufferUnpaddedDims(PJRT_Buffer_UnpaddedDimensions_Args* a) {
  a->unpadded_dims = a->buffer->dims.data();
  a->num_dims = a->buffer->dims.size();
  return nullptr;
}
PJRT_Error* BufferDynamicDims(PJRT_Buffer_DynamicDimensionIndices_Args* a) {
  a->dynamic_dim_indices = nullptr;
  a->num_dynamic_dims = 0;
  return nullptr;
}
PJRT_Error* BufferLayout(PJRT_Buffer_GetMemoryLayout_Args* a) {
  std::memset(&a->layout, 0, sizeof a->layout);
  a->layout.struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE;
  a->layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  a->layout.tiled.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE;
  a->layout.tiled.minor_to_major = a->buffer->minor_to_major.data();
  a->layout.tiled.minor_to_major_size = a->buffer->minor_to_major.size();
  return nullptr;
}
PJRT_Error* BufferDeviceSize(PJRT_Buffer_OnDeviceSizeInBytes_Args* a) {
  TRY_SET(a->on_device_size_in_bytes, a->buffer->buffer->GetOnDeviceSizeInBytes());
  return nullptr;
}
PJRT_Error* BufferDevice(PJRT_Buffer_Device_Args* a) {
  a->device = a->buffer->client->device_of.at(a->buffer->buffer->device());
  return nullptr;
}
PJRT_Error* BufferMemory(PJRT_Buffer_Memory_Args* a) {
  a->memory = a->buffer->client->memory_of.at(a->buffer->buffer->memory_space());
  return nullptr;
}
PJRT_Error* BufferDelete(PJRT_Buffer_Delete_Args* a) {
  a->buffer->buffer->Delete();
  return nullptr;
}
PJRT_Error* BufferIsDeleted(PJRT_Buffer_IsDeleted_Args* a) {
  a->is_deleted = a->buffer->buffer->IsDeleted();
  return nullptr;
}
PJRT_Error* BufferIsOnCpu(PJRT_Buffer_IsOnCpu_Args* a) {
  a->is_on_cpu = a->buffer->buffer->IsOnCpu();
  return nullptr;
}
PJRT_Error* BufferReady(PJRT_Buffer_ReadyEvent_Args* a) {
  a->event = WrapFuture(a->buffer->buffer->GetReadyFuture());
  return nullptr;
}
PJRT_Error* CopyTo(PJRT_Buffer* src, PJRT_Memory* dst, PJRT_Buffer** out) {
  TRY_SET(auto b, src->buffer->CopyToMemorySpace(dst->space));
  *out = WrapBuffer(std::move(b), src->client);
  return nullptr;
}
PJRT_Error* BufferCopyToDevice(PJRT_Buffer_CopyToDevice_Args* a) {
  if (!a->dst_device->default_memory) return Err(absl::InvalidArgumentError("not addressable"));
  return CopyTo(a->buffer, a->dst_device->default_memory, &a->dst_buffer);
}
PJRT_Error* BufferCopyToMemory(PJRT_Buffer_CopyToMemory_Args* a) {
  return CopyTo(a->buffer, a->dst_memory, &a->dst_buffer);
}
PJRT_Error* BufferToHost(PJRT_Buffer_ToHostBuffer_Args* a) {
  const auto& b = a->src->buffer;
  xla::Shape shape = xla::ShapeUtil::MakeShapeWithDescendingLayout(b->element_type(), a->src->dims);
  TRY_SET(std::optional<xla::Layout> layout, LayoutFromC(a->host_layout));
  if (layout) *shape.mutable_layout() = *layout;
  const size_t bytes = xla::ShapeUtil::ByteSizeOf(shape);
  if (a->dst == nullptr) {
    a->dst_size = bytes;
    return nullptr;
  }
  if (a->dst_size < bytes)
    return Err(absl::InvalidArgumentError("destination is too small for the buffer"));
  auto literal = std::make_shared<xla::MutableBorrowingLiteral>(static_cast<char*>(a->dst), shape);
  xla::Future<> f = b->ToLiteral(literal.get());
  f.OnReady([literal](absl::Status) {});
  a->event = WrapFuture(std::move(f));
  return nullptr;
}
PJRT_Error* BufferCopyRawToHost(PJRT_Buffer_CopyRawToHost_Args* a) {
  a->event = WrapFuture(a->buffer->buffer->CopyRawToHost(a->dst, a->offset, a->transfer_size));
  return nullptr;
}
PJRT_Error* BufferUnsafePointer(PJRT_Buffer_UnsafePointer_Args* a) {
  TRY_SET(a->buffer_pointer, a->buffer->client->client->UnsafeBufferPointer(a->buffer->buffer.get()));
  return nullptr;
}
PJRT_Error* BufferIncRef(PJRT_Buffer_IncreaseExternalReferenceCount_Args* a) {
  TRY_SET(auto ref, a->buffer->buffer->AcquireExternalReference());
  std::lock_guard<std::mutex> lock(a->buffer->mutex);
  a->buffer->refs.push_back(std::move(ref));
  return nullptr;
}
PJRT_Error* BufferDecRef(PJRT_Buffer_DecreaseExternalReferenceCount_Args* a) {
  std::lock_guard<std::mutex> lock(a->buffer->mutex);
  if (a->buffer->refs.empty()) return Err(absl::InvalidArgumentError("no external reference held"));
  a->buffer->refs.pop_back();
  return nullptr;
}
PJRT_Error* BufferDataPointer(PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args* a) {
  TRY_SET(auto ref, a->buffer->buffer->AcquireExternalReference());
  a->device_memory_ptr = ref->OpaqueDeviceMemoryDataPointer();
  return nullptr;
}

}  // namespace
