// Run an expression on CPU: the threads of ONNX Runtime share blocks, a block is done by tiles.
//
// The function of an expression reads arrays that are as long as its result. An input that is
// broadcast is either read in place, where a piece of it is long enough, or repeated into a buffer
// that stays in the first cache.
#include <cstring>

constexpr int64_t kTile = 1024, kLongRow = 512;
constexpr size_t kWidest = 8;

// Where a tile of an input is: in the input, in a buffer that all the tiles of a block share, or to
// be looked for.
enum Place { kInInput, kShared, kByTile };

using Tile = void (*)(const void* const* inputs, void* const* outputs, int64_t size);
struct Work {
  const Operator* op;
  const Layout* layout;
  void **inputs, **outputs;
  Place places[kMaxInputs];
  int64_t row, tile, block;  // elements; a tile is within a row
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

// A tile within a long row reads it in place; a tile of several short rows repeats them.
static Work plan(const Operator& op, const Layout& layout, void** inputs, void** outputs) {
  Work work{&op, &layout, inputs, outputs, {}, layout.total, layout.total, layout.total};
  const int last = layout.rank - 1;
  const int64_t length = layout.sizes[last];
  const bool is_long = length >= kLongRow;
  for (size_t i = 0; i < op.inputs; ++i) {
    const int64_t* strides = layout.strides[i];
    bool dense = true, same = true;  // as the result, in every row
    int64_t size = 1;
    for (int axis = last; axis >= 0; size *= layout.sizes[axis--]) {
      dense = dense && strides[axis] == size;
      same = same && (axis == last || strides[axis] == 0);
    }
    const bool scalar = same && strides[last] == 0;
    work.places[i] = dense ? kInInput : scalar || (same && !is_long) ? kShared : kByTile;
    if (dense) continue;
    work.tile = std::min(work.tile, is_long || scalar ? kTile : kTile / length * length);
    if (!scalar && is_long) work.row = length;
  }
  // Too little work is not worth waking a thread.
  const int64_t count = std::max<int64_t>(1, layout.total / op.grain),
                each = (layout.total + count - 1) / count;
  work.block = (each + kTile - 1) / kTile * kTile;
  return work;
}

static void run_block(void* argument, size_t block) {
  const Work& work = *(const Work*)argument;
  const Operator& op = *work.op;
  alignas(64) char buffers[kMaxInputs][kTile * kWidest];
  const void* inputs[kMaxInputs];
  void* outputs[kMaxOutputs];
  int64_t begin = block * work.block;
  const int64_t end = std::min(work.layout->total, begin + work.block);
  for (size_t i = 0; i < op.inputs; ++i)
    if (work.places[i] == kShared) inputs[i] = gather(work, i, begin, work.tile, buffers[i]);
  while (begin < end) {
    const int64_t size = std::min({work.tile, end - begin, work.row - begin % work.row});
    for (size_t i = 0; i < op.inputs; ++i) {
      if (work.places[i] == kInInput) inputs[i] = (char*)work.inputs[i] + begin * op.widths[i];
      if (work.places[i] == kByTile) inputs[i] = gather(work, i, begin, size, buffers[i]);
    }
    for (size_t i = 0; i < op.outputs; ++i)
      outputs[i] = (char*)work.outputs[i] + begin * op.result_widths[i];
    ((Tile)op.body)(inputs, outputs, size);
    begin += size;
  }
}

static OrtStatus* launch(const Operator& op, OrtKernelContext* context, const Layout& layout,
                         void** inputs, void** outputs) {
  Work work = plan(op, layout, inputs, outputs);
  const size_t blocks = (layout.total + work.block - 1) / work.block;
  if (blocks == 1) return run_block(&work, 0), nullptr;
  return call<kKernelContext_ParallelFor>((const OrtKernelContext*)context, &run_block, blocks,
                                          size_t(0), (void*)&work);
}
