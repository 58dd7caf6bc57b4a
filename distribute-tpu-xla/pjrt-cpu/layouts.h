// The Layouts extension, which JAX asks for.
#pragma once

#include "convert.h"

namespace {

PJRT_Error* LayoutDestroy(PJRT_Layouts_MemoryLayout_Destroy_Args* a) {
  delete a->layout;
  return nullptr;
}
PJRT_Error* LayoutSerialize(PJRT_Layouts_MemoryLayout_Serialize_Args* a) {
  a->serialized_bytes = a->layout->text.data();
  a->serialized_bytes_size = a->layout->text.size();
  a->serialized_layout = nullptr;
  a->serialized_layout_deleter = +[](PJRT_Layouts_SerializedLayout*) {};
  return nullptr;
}
PJRT_Error* LayoutClientDefault(PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args* a) {
  TRY_SET(xla::Layout l, a->client->client->GetDefaultLayout(
                             FromC(a->type), absl::MakeConstSpan(a->dims, a->num_dims)));
  a->layout = new PJRT_Layouts_MemoryLayout{xla::PjRtLayout(l).Serialize()};
  return nullptr;
}
PJRT_Error* LayoutBuffer(PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args* a) {
  a->layout = new PJRT_Layouts_MemoryLayout{a->buffer->buffer->layout()->Serialize()};
  return nullptr;
}
PJRT_Error* LayoutTopologyDefault(PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args* a) {
  TRY_SET(xla::Layout l, a->topology_description->topology->GetDefaultLayout(
                             FromC(a->type), absl::MakeConstSpan(a->dims, a->num_dims)));
  a->layout = new PJRT_Layouts_MemoryLayout{xla::PjRtLayout(l).Serialize()};
  return nullptr;
}
PJRT_Error* LayoutOutputs(PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args* a) {
  PJRT_Executable* e = a->executable;
  std::lock_guard<std::mutex> lock(e->mutex);
  if (e->layouts.empty()) {
    TRY_SET(auto layouts, e->exec->GetOutputLayouts());
    for (const auto& l : layouts) e->layouts.push_back(new PJRT_Layouts_MemoryLayout{l->Serialize()});
  }
  a->num_outputs = e->layouts.size();
  a->layouts = e->layouts.data();
  return nullptr;
}

}  // namespace
