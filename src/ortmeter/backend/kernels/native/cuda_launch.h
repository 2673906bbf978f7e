// Launch a compiled kernel on the stream of a session, through the driver.
//
// The driver is opened by name: nothing of CUDA is needed to compile this. What is loaded by
// cuLibraryLoadData (CUDA 12) serves every device of this architecture.
#include <dlfcn.h>

#include <string>

constexpr int64_t kThreads = 256, kPerThread = 4;

struct Driver {
  int (*load)(void** library, const void* image, void*, void**, unsigned, void*, void**, unsigned);
  int (*find)(void** kernel, void* library, const char* name);
  int (*launch)(void* kernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                void* stream, void** arguments, void** extra);
  void* library;
  std::string error;
};

static const Driver& driver() {
  static const Driver opened = [] {
    Driver found{};
    void* handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!handle) {
      found.error = std::string("the driver of CUDA cannot be opened: ") + dlerror();
      return found;
    }
    *(void**)&found.load = dlsym(handle, "cuLibraryLoadData");
    *(void**)&found.find = dlsym(handle, "cuLibraryGetKernel");
    *(void**)&found.launch = dlsym(handle, "cuLaunchKernel");
    if (!found.load || !found.find || !found.launch) {
      found.error = "the driver is older than CUDA 12";
      return found;
    }
    const int code = found.load(&found.library, image, nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (code) found.error = "cuLibraryLoadData failed with code " + std::to_string(code);
    return found;
  }();
  return opened;
}

static OrtStatus* launch(const Operator& op, OrtKernelContext* context, const Layout& layout,
                         void** inputs, void** outputs) {
  const Driver& cuda = driver();
  if (!cuda.error.empty()) return fail(kRuntimeFailure, cuda.error.c_str());
  void *kernel, *stream;
  int code = cuda.find(&kernel, cuda.library, (const char*)op.body);
  if (code) return fail(kRuntimeFailure, "cuLibraryGetKernel failed");
  TRY(call<kKernelContext_GetGPUComputeStream>((const OrtKernelContext*)context, &stream));
  const void* arguments[1 + kMaxOutputs + kMaxInputs] = {&layout};
  for (size_t i = 0; i < op.outputs; ++i) arguments[1 + i] = &outputs[i];
  for (size_t i = 0; i < op.inputs; ++i) arguments[1 + op.outputs + i] = &inputs[i];
  const int64_t per_block = kThreads * kPerThread,
                blocks = std::min<int64_t>((layout.total + per_block - 1) / per_block, INT32_MAX);
  code = cuda.launch(kernel, blocks, 1, 1, kThreads, 1, 1, 0, stream, (void**)arguments, nullptr);
  if (!code) return nullptr;
  return fail(kRuntimeFailure, ("cuLaunchKernel failed with code " + std::to_string(code)).c_str());
}
