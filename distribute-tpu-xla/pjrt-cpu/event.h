// Errors, the plugin itself, events.
#pragma once

#include "convert.h"

namespace {

void ErrorDestroy(PJRT_Error_Destroy_Args* a) { delete a->error; }
void ErrorMessage(PJRT_Error_Message_Args* a) {
  a->message = a->error->status.message().data();
  a->message_size = a->error->status.message().size();
}
PJRT_Error* ErrorGetCode(PJRT_Error_GetCode_Args* a) {
  a->code = static_cast<PJRT_Error_Code>(a->error->status.code());
  return nullptr;
}

PJRT_Error* PluginInitialize(PJRT_Plugin_Initialize_Args*) { return nullptr; }
PJRT_Error* PluginAttributes(PJRT_Plugin_Attributes_Args* a) {
  static NamedValues* attrs = [] {
    auto* n = new NamedValues;
    n->Fill(std::map<std::string, xla::PjRtValueType>{
        {"xla_version", int64_t{2}},
        {"stablehlo_current_version", std::vector<int64_t>{1, 13, 7}},
        {"stablehlo_minimum_version", std::vector<int64_t>{0, 9, 0}}});
    return n;
  }();
  a->attributes = attrs->view.data();
  a->num_attributes = attrs->view.size();
  return nullptr;
}

PJRT_Error* EventDestroy(PJRT_Event_Destroy_Args* a) {
  delete a->event;
  return nullptr;
}
PJRT_Error* EventIsReady(PJRT_Event_IsReady_Args* a) {
  a->is_ready = a->event->future.IsReady();
  return nullptr;
}
PJRT_Error* EventError(PJRT_Event_Error_Args* a) { return Err(a->event->future.Await()); }
PJRT_Error* EventAwait(PJRT_Event_Await_Args* a) { return Err(a->event->future.Await()); }
PJRT_Error* EventOnReady(PJRT_Event_OnReady_Args* a) {
  a->event->future.OnReady([cb = a->callback, arg = a->user_arg](absl::Status s) {
    cb(Err(std::move(s)), arg);
  });
  return nullptr;
}
PJRT_Error* EventCreate(PJRT_Event_Create_Args* a) {
  auto [promise, future] = xla::MakePromise<>();
  a->event = new PJRT_Event{std::move(future), std::move(promise)};
  return nullptr;
}
PJRT_Error* EventSet(PJRT_Event_Set_Args* a) {
  if (!a->event->promise) return Err(absl::FailedPreconditionError("event has no promise to set"));
  a->event->promise->Set(absl::Status(static_cast<absl::StatusCode>(a->error_code),
                                      std::string_view(a->error_message, a->error_message_size)));
  a->event->promise.reset();
  return nullptr;
}

}  // namespace
