// A PJRT C API plugin for XLA's CPU client, for tests on machines without a TPU.
//
// It puts the C ABI of pjrt_c_api.h on top of the C++ xla::PjRtClient that
// libtensorflow_cc.so.2 (PyPI wheel tensorflow-cpu) exports. N logical CPU
// devices give real multi-replica execution with real collectives.
//
// Device count, first hit wins: client create option "cpu_device_count"
// (int64), environment variable PJRT_CPU_DEVICE_COUNT, 8.
//
// One translation unit: XLA's headers take most of the compiler's time.

#include <cstdlib>
#include <utility>

#include "absl/base/log_severity.h"
#include "absl/log/globals.h"
#include "buffer.h"
#include "client.h"
#include "convert.h"
#include "device.h"
#include "event.h"
#include "executable.h"
#include "execute.h"
#include "layouts.h"
#include "topology.h"

namespace {

using Slot = PJRT_Error* (*)(void*);
constexpr size_t kFirstSlot = offsetof(PJRT_Api, PJRT_Error_Destroy);
constexpr size_t kSlots = (PJRT_Api_STRUCT_SIZE - kFirstSlot) / sizeof(Slot);

template <size_t... I>
void FillUnimplemented(PJRT_Api* api, std::index_sequence<I...>) {
  const Slot slots[] = {&Unimplemented<static_cast<int>(I)>...};
  std::memcpy(reinterpret_cast<char*>(api) + kFirstSlot, slots, sizeof slots);
}

// Errors travel as values here, so XLA need not write them to the terminal too,
// with stack traces. PJRT_CPU_LOG_LEVEL: 0 is all of XLA's messages, 3 (the
// default) only why it ends the process.
void SetLogLevel() {
  const char* e = std::getenv("PJRT_CPU_LOG_LEVEL");
  const int level = e ? std::atoi(e) : static_cast<int>(absl::LogSeverity::kFatal);
  absl::SetMinLogLevel(static_cast<absl::LogSeverityAtLeast>(level));
}

PJRT_Api MakeApi() {
  SetLogLevel();
  static PJRT_Layouts_Extension layouts;
  std::memset(&layouts, 0, sizeof layouts);
  layouts.base.struct_size = PJRT_Layouts_Extension_STRUCT_SIZE;
  layouts.base.type = PJRT_Extension_Type_Layouts;
  layouts.PJRT_Layouts_MemoryLayout_Destroy = LayoutDestroy;
  layouts.PJRT_Layouts_MemoryLayout_Serialize = LayoutSerialize;
  layouts.PJRT_Layouts_PJRT_Client_GetDefaultLayout = LayoutClientDefault;
  layouts.PJRT_Layouts_PJRT_Buffer_MemoryLayout = LayoutBuffer;
  layouts.PJRT_Layouts_PJRT_Topology_GetDefaultLayout = LayoutTopologyDefault;
  layouts.PJRT_Layouts_PJRT_Executable_GetOutputLayouts = LayoutOutputs;

  PJRT_Api api;
  std::memset(&api, 0, sizeof api);
  api.struct_size = PJRT_Api_STRUCT_SIZE;
  api.extension_start = &layouts.base;
  api.pjrt_api_version.struct_size = PJRT_Api_Version_STRUCT_SIZE;
  api.pjrt_api_version.major_version = PJRT_API_MAJOR;
  api.pjrt_api_version.minor_version = PJRT_API_MINOR;
  FillUnimplemented(&api, std::make_index_sequence<kSlots>());

  api.PJRT_Error_Destroy = ErrorDestroy;
  api.PJRT_Error_Message = ErrorMessage;
  api.PJRT_Error_GetCode = ErrorGetCode;
  api.PJRT_Plugin_Initialize = PluginInitialize;
  api.PJRT_Plugin_Attributes = PluginAttributes;
  api.PJRT_Event_Destroy = EventDestroy;
  api.PJRT_Event_IsReady = EventIsReady;
  api.PJRT_Event_Error = EventError;
  api.PJRT_Event_Await = EventAwait;
  api.PJRT_Event_OnReady = EventOnReady;
  api.PJRT_Event_Create = EventCreate;
  api.PJRT_Event_Set = EventSet;
  api.PJRT_Client_Create = ClientCreate;
  api.PJRT_Client_Destroy = ClientDestroy;
  api.PJRT_Client_PlatformName = ClientPlatformName;
  api.PJRT_Client_PlatformVersion = ClientPlatformVersion;
  api.PJRT_Client_ProcessIndex = ClientProcessIndex;
  api.PJRT_Client_TopologyDescription = ClientTopology;
  api.PJRT_Client_Devices = ClientDevices;
  api.PJRT_Client_AddressableDevices = ClientAddressableDevices;
  api.PJRT_Client_LookupDevice = ClientLookupDevice;
  api.PJRT_Client_LookupAddressableDevice = ClientLookupAddressableDevice;
  api.PJRT_Client_AddressableMemories = ClientAddressableMemories;
  api.PJRT_Client_Compile = ClientCompile;
  api.PJRT_Client_DefaultDeviceAssignment = ClientDefaultDeviceAssignment;
  api.PJRT_Client_BufferFromHostBuffer = ClientBufferFromHost;
  api.PJRT_DeviceDescription_Id = DescId;
  api.PJRT_DeviceDescription_ProcessIndex = DescProcessIndex;
  api.PJRT_DeviceDescription_Attributes = DescAttributes;
  api.PJRT_DeviceDescription_Kind = DescKind;
  api.PJRT_DeviceDescription_DebugString = DescDebugString;
  api.PJRT_DeviceDescription_ToString = DescToString;
  api.PJRT_Device_GetDescription = DeviceGetDescription;
  api.PJRT_Device_IsAddressable = DeviceIsAddressable;
  api.PJRT_Device_LocalHardwareId = DeviceLocalHardwareId;
  api.PJRT_Device_AddressableMemories = DeviceAddressableMemories;
  api.PJRT_Device_DefaultMemory = DeviceDefaultMemory;
  api.PJRT_Memory_Id = MemoryId;
  api.PJRT_Memory_Kind = MemoryKind;
  api.PJRT_Memory_Kind_Id = MemoryKindId;
  api.PJRT_Memory_DebugString = MemoryDebugString;
  api.PJRT_Memory_ToString = MemoryToString;
  api.PJRT_Memory_AddressableByDevices = MemoryDevices;
  api.PJRT_Executable_Destroy = ExecDestroy;
  api.PJRT_Executable_Name = ExecName;
  api.PJRT_Executable_NumReplicas = ExecNumReplicas;
  api.PJRT_Executable_NumPartitions = ExecNumPartitions;
  api.PJRT_Executable_NumOutputs = ExecNumOutputs;
  api.PJRT_Executable_SizeOfGeneratedCodeInBytes = ExecCodeSize;
  api.PJRT_Executable_GetCostAnalysis = ExecCost;
  api.PJRT_Executable_GetCompiledMemoryStats = ExecMemoryStats;
  api.PJRT_Executable_OptimizedProgram = ExecOptimizedProgram;
  api.PJRT_Executable_Serialize = ExecSerialize;
  api.PJRT_Executable_GetCompileOptions = ExecCompileOptions;
  api.PJRT_Executable_Fingerprint = ExecFingerprint;
  api.PJRT_Executable_OutputElementTypes = ExecOutputTypes;
  api.PJRT_Executable_OutputDimensions = ExecOutputDims;
  api.PJRT_Executable_OutputMemoryKinds = ExecOutputMemoryKinds;
  api.PJRT_Executable_DeserializeAndLoad = ExecDeserializeAndLoad;
  api.PJRT_LoadedExecutable_Destroy = LoadedDestroy;
  api.PJRT_LoadedExecutable_GetExecutable = LoadedGetExecutable;
  api.PJRT_LoadedExecutable_AddressableDevices = LoadedDevices;
  api.PJRT_LoadedExecutable_GetDeviceAssignment = LoadedDeviceAssignment;
  api.PJRT_LoadedExecutable_Delete = LoadedDelete;
  api.PJRT_LoadedExecutable_IsDeleted = LoadedIsDeleted;
  api.PJRT_LoadedExecutable_Execute = LoadedExecute;
  api.PJRT_ExecuteContext_Create = ContextCreate;
  api.PJRT_ExecuteContext_Destroy = ContextDestroy;
  api.PJRT_Buffer_Destroy = BufferDestroy;
  api.PJRT_Buffer_ElementType = BufferType;
  api.PJRT_Buffer_Dimensions = BufferDims;
  api.PJRT_Buffer_UnpaddedDimensions = BufferUnpaddedDims;
  api.PJRT_Buffer_DynamicDimensionIndices = BufferDynamicDims;
  api.PJRT_Buffer_GetMemoryLayout = BufferLayout;
  api.PJRT_Buffer_OnDeviceSizeInBytes = BufferDeviceSize;
  api.PJRT_Buffer_Device = BufferDevice;
  api.PJRT_Buffer_Memory = BufferMemory;
  api.PJRT_Buffer_Delete = BufferDelete;
  api.PJRT_Buffer_IsDeleted = BufferIsDeleted;
  api.PJRT_Buffer_IsOnCpu = BufferIsOnCpu;
  api.PJRT_Buffer_ReadyEvent = BufferReady;
  api.PJRT_Buffer_CopyToDevice = BufferCopyToDevice;
  api.PJRT_Buffer_CopyToMemory = BufferCopyToMemory;
  api.PJRT_Buffer_ToHostBuffer = BufferToHost;
  api.PJRT_Buffer_CopyRawToHost = BufferCopyRawToHost;
  api.PJRT_Buffer_UnsafePointer = BufferUnsafePointer;
  api.PJRT_Buffer_IncreaseExternalReferenceCount = BufferIncRef;
  api.PJRT_Buffer_DecreaseExternalReferenceCount = BufferDecRef;
  api.PJRT_Buffer_OpaqueDeviceMemoryDataPointer = BufferDataPointer;
  api.PJRT_TopologyDescription_Create = TopologyCreate;
  api.PJRT_TopologyDescription_Destroy = TopologyDestroy;
  api.PJRT_TopologyDescription_PlatformName = TopologyPlatformName;
  api.PJRT_TopologyDescription_PlatformVersion = TopologyPlatformVersion;
  api.PJRT_TopologyDescription_GetDeviceDescriptions = TopologyDescs;
  api.PJRT_TopologyDescription_Serialize = TopologySerialize;
  api.PJRT_TopologyDescription_Attributes = TopologyAttributes;
  api.PJRT_Compile = Compile;
  return api;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const PJRT_Api* GetPjrtApi() {
  static const PJRT_Api api = MakeApi();
  return &api;
}
