// A custom operator for each expression: its shapes, and its registration.
#include <algorithm>

struct Operator : OrtCustomOp {
  const char* name;
  size_t inputs, outputs;
  int64_t grain;  // elements of a result that are worth a thread
  int types[kMaxInputs], results[kMaxOutputs];
  size_t widths[kMaxInputs], result_widths[kMaxOutputs];
  const void* body;  // what computes it: a function, or the names of kernels
};

struct Shape {
  size_t rank;
  int64_t sizes[kMaxRank];
};

static OrtStatus* fail(int code, const char* message) {
  return call<kCreateStatus>(code, message);
}

static OrtStatus* read_input(OrtKernelContext* context, size_t i, Shape& shape, void** data) {
  const OrtValue* value;
  OrtTensorInfo* info;
  TRY(call<kKernelContext_GetInput>((const OrtKernelContext*)context, i, &value));
  TRY(call<kGetTensorMutableData>((OrtValue*)value, data));
  TRY(call<kGetTensorTypeAndShape>(value, &info));
  OrtStatus* status = call<kGetDimensionsCount>((const OrtTensorInfo*)info, &shape.rank);
  if (!status && shape.rank > kMaxRank) status = fail(kInvalidArgument, "more than 16 dimensions");
  if (!status) status = call<kGetDimensions>((const OrtTensorInfo*)info, shape.sizes, shape.rank);
  ((void (*)(OrtTensorInfo*))api->entries[kReleaseTensorTypeAndShapeInfo])(info);
  return status;
}

// Shape of the results, by the rules of numpy.
static OrtStatus* broadcast(const Shape* inputs, size_t count, Shape& result) {
  result.rank = 0;
  for (size_t i = 0; i < count; ++i) result.rank = std::max(result.rank, inputs[i].rank);
  for (size_t axis = 0; axis < result.rank; ++axis) {
    int64_t& size = result.sizes[result.rank - 1 - axis];
    size = 1;
    for (size_t i = 0; i < count; ++i) {
      if (axis >= inputs[i].rank) continue;
      int64_t own = inputs[i].sizes[inputs[i].rank - 1 - axis];
      if (size == 1) size = own;
      else if (own != 1 && own != size)
        return fail(kInvalidArgument, "the shapes of the inputs cannot be broadcast together");
    }
  }
  return nullptr;
}

static void set_strides(const Shape& input, const Shape& result, int64_t* strides) {
  int64_t stride = 1;
  for (size_t axis = 0; axis < result.rank; ++axis) {
    int64_t own = axis < input.rank ? input.sizes[input.rank - 1 - axis] : 1;
    strides[result.rank - 1 - axis] = own == 1 ? 0 : stride;
    stride *= own;
  }
}

// Axes that every input walks through together become one: most layouts end with one or two.
static Layout make_layout(const Shape* inputs, size_t count, const Shape& result) {
  Layout layout{0, 1, {}, {}};
  int64_t strides[kMaxInputs][kMaxRank];
  for (size_t i = 0; i < count; ++i) set_strides(inputs[i], result, strides[i]);
  for (size_t axis = 0; axis < result.rank; ++axis) {
    const int64_t size = result.sizes[axis];
    layout.total *= size;
    if (size == 1) continue;
    bool merges = layout.rank > 0;
    for (size_t i = 0; merges && i < count; ++i)
      merges = layout.strides[i][layout.rank - 1] == strides[i][axis] * size;
    if (!merges) layout.sizes[layout.rank++] = 1;
    layout.sizes[layout.rank - 1] *= size;
    for (size_t i = 0; i < count; ++i) layout.strides[i][layout.rank - 1] = strides[i][axis];
  }
  if (layout.rank == 0) layout.sizes[layout.rank++] = 1;
  return layout;
}

static OrtStatus* launch(const Operator&, OrtKernelContext*, const Layout&, void** inputs,
                         void** outputs);

static OrtStatus* compute(void* self, OrtKernelContext* context) {
  const Operator& op = *(const Operator*)self;
  Shape shapes[kMaxInputs], result;
  void *inputs[kMaxInputs], *outputs[kMaxOutputs];
  for (size_t i = 0; i < op.inputs; ++i) TRY(read_input(context, i, shapes[i], &inputs[i]));
  TRY(broadcast(shapes, op.inputs, result));
  for (size_t i = 0; i < op.outputs; ++i) {
    OrtValue* output;
    TRY(call<kKernelContext_GetOutput>(context, i, (const int64_t*)result.sizes, result.rank,
                                       &output));
    TRY(call<kGetTensorMutableData>(output, &outputs[i]));
  }
  const Layout layout = make_layout(shapes, op.inputs, result);
  return layout.total ? launch(op, context, layout, inputs, outputs) : nullptr;
}

static OrtStatus* register_operators(OrtSessionOptions* options, const OrtApiBase* base,
                                     const char* domain_name, Operator* first, size_t count) {
  api = base->GetApi(kApiVersion);
  OrtCustomOpDomain* domain;
  TRY(call<kCreateCustomOpDomain>(domain_name, &domain));
  for (Operator* op = first; op != first + count; ++op) {
    op->version = kCustomOpVersion;
    op->GetName = [](const OrtCustomOp* op) { return ((const Operator*)op)->name; };
    op->GetExecutionProviderType = [](const OrtCustomOp*) { return kProvider; };
    op->GetInputTypeCount = [](const OrtCustomOp* op) { return ((const Operator*)op)->inputs; };
    op->GetInputType = [](const OrtCustomOp* op, size_t i) {
      return ((const Operator*)op)->types[i];
    };
    op->GetOutputTypeCount = [](const OrtCustomOp* op) { return ((const Operator*)op)->outputs; };
    op->GetOutputType = [](const OrtCustomOp* op, size_t i) {
      return ((const Operator*)op)->results[i];
    };
    op->GetInputCharacteristic = op->GetOutputCharacteristic = op->GetInputMemoryType =
        [](const OrtCustomOp*, size_t) { return 0; };
    op->CreateKernelV2 = [](const OrtCustomOp* op, const OrtApi*, const OrtKernelInfo*,
                            void** kernel) -> OrtStatus* {
      *kernel = (void*)op;
      return nullptr;
    };
    op->KernelComputeV2 = compute;
    op->KernelDestroy = [](void*) {};
    TRY(call<kCustomOpDomain_Add>(domain, (const OrtCustomOp*)op));
  }
  return call<kAddCustomOpDomain>(options, domain);
}
