// Compiled programs: what the compiler says about them, and their stored form.
#pragma once

#include "convert.h"

namespace {

PJRT_Error* ExecDestroy(PJRT_Executable_Destroy_Args* a) {
  if (a->executable)
    for (auto* l : a->executable->layouts) delete l;
  delete a->executable;
  return nullptr;
}
PJRT_Error* ExecName(PJRT_Executable_Name_Args* a) {
  auto s = a->executable->exec->name();
  a->executable_name = s.data();
  a->executable_name_size = s.size();
  return nullptr;
}
PJRT_Error* ExecNumReplicas(PJRT_Executable_NumReplicas_Args* a) {
  a->num_replicas = a->executable->exec->num_replicas();
  return nullptr;
}
PJRT_Error* ExecNumPartitions(PJRT_Executable_NumPartitions_Args* a) {
  a->num_partitions = a->executable->exec->num_partitions();
  return nullptr;
}
PJRT_Error* ExecNumOutputs(PJRT_Executable_NumOutputs_Args* a) {
  TRY_SET(auto types, a->executable->exec->GetOutputElementTypes());
  if (types.size() != 1) return Err(absl::UnimplementedError("more than one program"));
  a->num_outputs = types[0].size();
  return nullptr;
}
PJRT_Error* ExecCodeSize(PJRT_Executable_SizeOfGeneratedCodeInBytes_Args* a) {
  a->size_in_bytes = a->executable->exec->SizeOfGeneratedCodeInBytes();
  return nullptr;
}
PJRT_Error* ExecCost(PJRT_Executable_GetCostAnalysis_Args* a) {
  TRY_SET(auto cost, a->executable->exec->GetCostAnalysis());
  std::lock_guard<std::mutex> lock(a->executable->mutex);
  if (a->executable->cost.view.empty()) a->executable->cost.Fill(cost);
  a->properties = a->executable->cost.view.data();
  a->num_properties = a->executable->cost.view.size();
  return nullptr;
}
PJRT_Error* ExecMemoryStats(PJRT_Executable_GetCompiledMemoryStats_Args* a) {
  TRY_SET(xla::CompiledMemoryStats s, a->executable->exec->GetCompiledMemoryStats());
  a->generated_code_size_in_bytes = s.generated_code_size_in_bytes;
  a->argument_size_in_bytes = s.argument_size_in_bytes;
  a->output_size_in_bytes = s.output_size_in_bytes;
  a->alias_size_in_bytes = s.alias_size_in_bytes;
  a->temp_size_in_bytes = s.temp_size_in_bytes;
  a->host_generated_code_size_in_bytes = s.host_generated_code_size_in_bytes;
  a->host_argument_size_in_bytes = s.host_argument_size_in_bytes;
  a->host_output_size_in_bytes = s.host_output_size_in_bytes;
  a->host_alias_size_in_bytes = s.host_alias_size_in_bytes;
  a->host_temp_size_in_bytes = s.host_temp_size_in_bytes;
  if (HAS(a, peak_memory_in_bytes)) a->peak_memory_in_bytes = s.peak_memory_in_bytes;
  if (HAS(a, total_size_in_bytes)) a->total_size_in_bytes = s.total_size_in_bytes;
  return nullptr;
}
PJRT_Error* ExecOptimizedProgram(PJRT_Executable_OptimizedProgram_Args* a) {
  static constexpr char kFormat[] = "hlo_with_config";
  std::lock_guard<std::mutex> lock(a->executable->mutex);
  std::string& text = a->executable->program;
  if (text.empty()) {
    TRY_SET(auto modules, a->executable->exec->GetHloModules());
    if (modules.size() != 1) return Err(absl::UnimplementedError("more than one program"));
    text = modules[0]->ToProtoWithConfig().SerializeAsString();
  }
  PJRT_Program* p = a->program;
  p->format = kFormat;
  p->format_size = sizeof(kFormat) - 1;
  if (p->code == nullptr) {
    p->code_size = text.size();
  } else {
    if (p->code_size < text.size()) return Err(absl::InvalidArgumentError("code buffer too small"));
    std::memcpy(p->code, text.data(), text.size());
  }
  return nullptr;
}
PJRT_Error* ExecSerialize(PJRT_Executable_Serialize_Args* a) {
  TRY_SET(std::string s, a->executable->exec->SerializeExecutable());
  auto* h = new PJRT_SerializedExecutable{std::move(s)};
  a->serialized_bytes = h->bytes.data();
  a->serialized_bytes_size = h->bytes.size();
  a->serialized_executable = h;
  a->serialized_executable_deleter = +[](PJRT_SerializedExecutable* p) { delete p; };
  return nullptr;
}
PJRT_Error* ExecCompileOptions(PJRT_Executable_GetCompileOptions_Args* a) {
  TRY_SET(xla::CompileOptions o, a->executable->exec->GetCompileOptions());
  TRY_SET(xla::CompileOptionsProto proto, o.ToProto());
  auto* h = new PJRT_SerializedCompileOptions{proto.SerializeAsString()};
  a->serialized_bytes = h->bytes.data();
  a->serialized_bytes_size = h->bytes.size();
  a->serialized_compile_options = h;
  a->serialized_compile_options_deleter = +[](PJRT_SerializedCompileOptions* p) { delete p; };
  return nullptr;
}
PJRT_Error* ExecFingerprint(PJRT_Executable_Fingerprint_Args* a) {
  std::lock_guard<std::mutex> lock(a->executable->mutex);
  if (a->executable->fingerprint.empty()) {
    TRY_SET(a->executable->fingerprint, a->executable->exec->FingerprintExecutable());
  }
  a->executable_fingerprint = a->executable->fingerprint.data();
  a->executable_fingerprint_size = a->executable->fingerprint.size();
  return nullptr;
}
PJRT_Error* ExecOutputTypes(PJRT_Executable_OutputElementTypes_Args* a) {
  TRY_SET(auto types, a->executable->exec->GetOutputElementTypes());
  if (types.size() != 1) return Err(absl::UnimplementedError("more than one program"));
  std::lock_guard<std::mutex> lock(a->executable->mutex);
  if (a->executable->types.empty())
    for (auto t : types[0]) a->executable->types.push_back(ToC(t));
  a->output_types = a->executable->types.data();
  a->num_output_types = a->executable->types.size();
  return nullptr;
}
PJRT_Error* ExecOutputDims(PJRT_Executable_OutputDimensions_Args* a) {
  PJRT_Executable* e = a->executable;
  TRY_SET(auto dims, e->exec->GetOutputDimensions());
  if (dims.size() != 1) return Err(absl::UnimplementedError("more than one program"));
  std::lock_guard<std::mutex> lock(e->mutex);
  if (e->ranks.empty())
    for (const auto& d : dims[0]) {
      e->ranks.push_back(d.size());
      e->dims.insert(e->dims.end(), d.begin(), d.end());
    }
  a->num_outputs = e->ranks.size();
  a->dims = e->dims.data();
  a->dim_sizes = e->ranks.data();
  return nullptr;
}
PJRT_Error* ExecOutputMemoryKinds(PJRT_Executable_OutputMemoryKinds_Args* a) {
  PJRT_Executable* e = a->executable;
  TRY_SET(auto kinds, e->exec->GetOutputMemoryKinds());
  if (kinds.size() != 1) return Err(absl::UnimplementedError("more than one program"));
  std::lock_guard<std::mutex> lock(e->mutex);
  if (e->kinds.empty()) {
    for (auto k : kinds[0]) e->kinds.emplace_back(k);
    for (const auto& k : e->kinds) {
      e->kind_ptrs.push_back(k.data());
      e->kind_sizes.push_back(k.size());
    }
  }
  a->num_outputs = e->kinds.size();
  a->memory_kinds = e->kind_ptrs.data();
  a->memory_kind_sizes = e->kind_sizes.data();
  return nullptr;
}
PJRT_Error* ExecDeserializeAndLoad(PJRT_Executable_DeserializeAndLoad_Args* a) {
  std::optional<xla::CompileOptions> options;
  if (HAS(a, overridden_serialized_compile_options_size) &&
      a->overridden_serialized_compile_options_size != 0) {
    TRY_SET(options, ParseOptions(a->overridden_serialized_compile_options,
                                  a->overridden_serialized_compile_options_size));
  }
  TRY_SET(auto exec, a->client->client->LoadSerializedExecutable(
                         std::string_view(a->serialized_executable, a->serialized_executable_size),
                         std::move(options), xla::LoadOptions()));
  a->loaded_executable = WrapLoaded(std::move(exec), a->client);
  return nullptr;
}

}  // namespace
