// The entry points of the C ABI of ONNX Runtime that a custom operator needs.
//
// OrtApi is a table of functions that only grows: an entry keeps its rank for ever, and so do the
// fields of OrtCustomOp. Ranks and fields are facts of that ABI; each library is tried in a child
// process before it is used, so that a mistake here never reaches a session.
#include <cstddef>
#include <cstdint>

#define EXPORT extern "C" __attribute__((visibility("default")))

struct OrtStatus;
struct OrtValue;
struct OrtTensorInfo;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtSessionOptions;
struct OrtCustomOpDomain;

struct OrtApi { void* entries[275]; };
struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

enum Entry {
  kCreateStatus = 0,
  kCreateCustomOpDomain = 26,
  kCustomOpDomain_Add = 27,
  kAddCustomOpDomain = 28,
  kGetTensorMutableData = 51,
  kGetDimensionsCount = 61,
  kGetDimensions = 62,
  kGetTensorTypeAndShape = 65,
  kKernelContext_GetInput = 90,
  kKernelContext_GetOutput = 91,
  kReleaseTensorTypeAndShapeInfo = 99,
  kKernelContext_GetGPUComputeStream = 193,
  kKernelContext_ParallelFor = 274,
};
constexpr uint32_t kApiVersion = 17;  // the first one that has all of them
constexpr int kInvalidArgument = 2, kRuntimeFailure = 6;

struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  int (*GetInputType)(const OrtCustomOp*, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  int (*GetOutputType)(const OrtCustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void*, OrtKernelContext*);
  void (*KernelDestroy)(void*);
  int (*GetInputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetOutputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetInputMemoryType)(const OrtCustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void**);
  OrtStatus* (*KernelComputeV2)(void*, OrtKernelContext*);
};
constexpr uint32_t kCustomOpVersion = 16;  // the one whose last field is KernelComputeV2

static const OrtApi* api;

template <int Rank, class... A>
static inline OrtStatus* call(A... arguments) {
  return ((OrtStatus * (*)(A...)) api->entries[Rank])(arguments...);
}

#define TRY(expression) \
  if (OrtStatus* status = (expression)) return status
