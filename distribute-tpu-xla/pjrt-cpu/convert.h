// Between the types of the C API and XLA's types.
#pragma once

#include "types.h"

namespace {

constexpr xla::PrimitiveType kTypes[] = {
    xla::PRIMITIVE_TYPE_INVALID, xla::PRED, xla::S8, xla::S16, xla::S32, xla::S64,
    xla::U8, xla::U16, xla::U32, xla::U64, xla::F16, xla::F32, xla::F64, xla::BF16,
    xla::C64, xla::C128, xla::F8E5M2, xla::F8E4M3FN, xla::F8E4M3B11FNUZ,
    xla::F8E5M2FNUZ, xla::F8E4M3FNUZ, xla::S4, xla::U4, xla::TOKEN, xla::S2, xla::U2,
    xla::F8E4M3, xla::F8E3M4, xla::F8E8M0FNU, xla::F4E2M1FN};
constexpr int kNumTypes = sizeof(kTypes) / sizeof(kTypes[0]);

xla::PrimitiveType FromC(PJRT_Buffer_Type t) {
  return static_cast<int>(t) < kNumTypes ? kTypes[static_cast<int>(t)]
                                         : xla::PRIMITIVE_TYPE_INVALID;
}
PJRT_Buffer_Type ToC(xla::PrimitiveType t) {
  for (int i = 0; i < kNumTypes; ++i)
    if (kTypes[i] == t) return static_cast<PJRT_Buffer_Type>(i);
  return PJRT_Buffer_Type_INVALID;
}

absl::StatusOr<std::optional<xla::Layout>> LayoutFromC(const PJRT_Buffer_MemoryLayout* l) {
  if (l == nullptr) return std::optional<xla::Layout>();
  if (l->type != PJRT_Buffer_MemoryLayout_Type_Tiled || l->tiled.num_tiles != 0)
    return absl::UnimplementedError("only untiled minor_to_major layouts are supported");
  return std::optional<xla::Layout>(xla::LayoutUtil::MakeLayout(
      absl::MakeConstSpan(l->tiled.minor_to_major, l->tiled.minor_to_major_size)));
}

void FillTopology(PJRT_TopologyDescription* t, const xla::PjRtTopologyDescription* x) {
  t->topology = x;
  for (auto& d : x->DeviceDescriptions()) {
    auto c = std::make_unique<PJRT_DeviceDescription>();
    c->desc = d.get();
    c->owned = std::move(d);
    c->attributes.Fill(c->desc->Attributes());
    t->desc_ptrs.push_back(c.get());
    t->descs.push_back(std::move(c));
  }
  t->attributes.Fill(x->Attributes());
}

absl::StatusOr<xla::XlaComputation> ParseProgram(const PJRT_Program* p) {
  std::string_view format(p->format, p->format_size), code(p->code, p->code_size);
  xla::XlaComputation c;
  if (format == "mlir") {
    absl::Status s = xla::ParseMlirModuleStringAndConvertToXlaComputation(
        code, c, /*return_tuple=*/false, /*use_tuple_args=*/false);
    if (!s.ok()) return s;
    return c;
  }
  if (format == "hlo") {
    xla::HloModuleProto proto;
    if (!proto.ParseFromArray(p->code, static_cast<int>(p->code_size)))
      return absl::InvalidArgumentError("cannot parse HloModuleProto");
    return xla::XlaComputation(std::move(proto));
  }
  return absl::InvalidArgumentError("program format must be mlir or hlo, got " + std::string(format));
}

absl::StatusOr<xla::CompileOptions> ParseOptions(const char* bytes, size_t n) {
  xla::CompileOptionsProto proto;
  if (!proto.ParseFromArray(bytes, static_cast<int>(n)))
    return absl::InvalidArgumentError("cannot parse CompileOptionsProto");
  return xla::CompileOptions::FromProto(proto);
}

PJRT_Executable* WrapExecutable(std::shared_ptr<const void> keep, xla::PjRtExecutable* exec) {
  auto* e = new PJRT_Executable;
  e->keep = std::move(keep);
  e->exec = exec;
  return e;
}

// Nothing if XLA does not tell, or if the arguments come in a tuple.
std::optional<std::vector<Parameter>> ParametersOf(const xla::PjRtLoadedExecutable& e) {
  auto modules = e.GetHloModules();
  if (!modules.ok() || modules->size() != 1) return std::nullopt;
  const xla::HloModule& module = *modules->front();
  const auto& layout = module.entry_computation_layout();
  std::vector<Parameter> parameters;
  for (int i = 0; i < layout.parameter_count(); ++i) {
    const xla::Shape& shape = layout.parameter_shape(i);
    if (!shape.IsArray() || shape.is_dynamic()) return std::nullopt;
    parameters.push_back({shape.element_type(),
                          {shape.dimensions().begin(), shape.dimensions().end()},
                          module.input_output_alias_config().ParameterHasAlias(i, {}) ||
                              module.buffer_donor_config().ParameterIsBufferDonor(i, {})});
  }
  return parameters;
}

PJRT_LoadedExecutable* WrapLoaded(std::unique_ptr<xla::PjRtLoadedExecutable> e, PJRT_Client* c) {
  auto* l = new PJRT_LoadedExecutable{std::move(e), c, {}, {}};
  l->parameters = ParametersOf(*l->exec);
  for (auto* d : l->exec->addressable_devices()) l->devices.push_back(c->device_of.at(d));
  return l;
}

PJRT_Buffer* WrapBuffer(std::unique_ptr<xla::PjRtBuffer> b, PJRT_Client* c) {
  auto* w = new PJRT_Buffer;
  w->buffer = std::move(b);
  w->client = c;
  auto d = w->buffer->dimensions();
  w->dims.assign(d.begin(), d.end());
  if (w->buffer->on_device_shape().IsArray()) {
    auto m = w->buffer->layout()->xla_layout().minor_to_major();
    w->minor_to_major.assign(m.begin(), m.end());
  }
  return w;
}

PJRT_Event* WrapFuture(xla::Future<> f) { return new PJRT_Event{std::move(f), std::nullopt}; }

// Any slot of the table that is not implemented below.
template <int N>
PJRT_Error* Unimplemented(void*) {
  return Err(absl::UnimplementedError("PJRT C API function number " + std::to_string(N) +
                                      " is not implemented by the CPU test plugin"));
}

}  // namespace
