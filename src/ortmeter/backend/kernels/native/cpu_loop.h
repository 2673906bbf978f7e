// Run an expression on CPU: the threads of ONNX Runtime share blocks, a block is done by tiles.
//
// The function of an expression reads arrays that are as long as its result. An input that is
// broadcast is either read in place, where a piece of it is long enough, or repeated into a buffer
// that stays in the first cache.
#include <cstring>

constexpr int64_t kBlock = 16384, kTile = 1024, kLongRow = 256;
constexpr size_t kWidest = 8;

using Tile = void (*)(const void* const* inputs, void* output, int64_t size);
struct Work {
  const Operator* op;
  const Layout* layout;
  void** inputs;
  char* output;
  Tile tile;
};

template <class T>
static void repeat(void* target, const void* source, int64_t stride, int64_t size) {
  if (stride) std::memcpy(target, source, size * sizeof(T));
  else std::fill_n((T*)target, size, *(const T*)source);
}

static void repeat(void* target, const void* source, size_t width, int64_t stride, int64_t size) {
  switch (width) {
    case 1: return repeat<uint8_t>(target, source, stride, size);
    case 2: return repeat<uint16_t>(target, source, stride, size);
    case 4: return repeat<uint32_t>(target, source, stride, size);
    default: return repeat<uint64_t>(target, source, stride, size);
  }
}

// Rank, in an input, of the first element of a row of the result.
static int64_t row_start(const Layout& layout, const int64_t* strides, int64_t row) {
  int64_t start = 0;
  for (int axis = layout.rank - 2; axis >= 0; --axis) {
    start += row % layout.sizes[axis] * strides[axis];
    row /= layout.sizes[axis];
  }
  return start;
}

static const void* gather(const Work& work, size_t i, int64_t begin, int64_t size, char* buffer) {
  const Layout& layout = *work.layout;
  const int64_t *strides = layout.strides[i], length = layout.sizes[layout.rank - 1],
                step = strides[layout.rank - 1];
  const size_t width = work.op->widths[i];
  const char* data = (const char*)work.inputs[i];
  for (int64_t done = 0; done < size;) {
    const int64_t row = (begin + done) / length, column = (begin + done) % length;
    const char* source = data + (row_start(layout, strides, row) + column * step) * width;
    const int64_t count = std::min(size - done, length - column);
    if (step && count == size) return source;
    repeat(buffer + done * width, source, width, step, count);
    done += count;
  }
  return buffer;
}

static bool is_scalar(const Layout& layout, size_t i) {
  return std::all_of(layout.strides[i], layout.strides[i] + layout.rank,
                     [](int64_t stride) { return stride == 0; });
}

static void run_block(void* argument, size_t block) {
  const Work& work = *(const Work*)argument;
  const Layout& layout = *work.layout;
  alignas(64) char buffers[kMaxInputs][kTile * kWidest];
  const void* inputs[kMaxInputs];
  bool constant[kMaxInputs];
  for (size_t i = 0; i < work.op->inputs; ++i) {
    constant[i] = is_scalar(layout, i);
    if (constant[i]) inputs[i] = buffers[i];
    if (constant[i]) repeat(buffers[i], work.inputs[i], work.op->widths[i], 0, kTile);
  }
  // A tile within a long row reads it in place; tiles over short rows repeat them.
  const int64_t row = layout.sizes[layout.rank - 1] < kLongRow ? layout.total
                                                               : layout.sizes[layout.rank - 1];
  const int64_t end = std::min(layout.total, int64_t(block + 1) * kBlock);
  for (int64_t begin = block * kBlock; begin < end;) {
    const int64_t size = std::min({kTile, end - begin, row - begin % row});
    for (size_t i = 0; i < work.op->inputs; ++i)
      if (!constant[i]) inputs[i] = gather(work, i, begin, size, buffers[i]);
    work.tile(inputs, work.output + begin * work.op->result_width, size);
    begin += size;
  }
}

static OrtStatus* launch(const Operator& op, OrtKernelContext* context, const Layout& layout,
                         void** inputs, void* output) {
  Work work{&op, &layout, inputs, (char*)output, (Tile)op.body};
  const size_t blocks = (layout.total + kBlock - 1) / kBlock;
  if (blocks == 1) return run_block(&work, 0), nullptr;
  return call<kKernelContext_ParallelFor>((const OrtKernelContext*)context, &run_block, blocks,
                                          size_t(0), (void*)&work);
}
