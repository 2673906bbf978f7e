// How inputs are read in the order of the output: shared by the host and by CUDA kernels.
#ifdef __CUDACC_RTC__
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef int int32_t;
typedef long long int64_t;
#else
#include <cstdint>
#endif

constexpr int kMaxInputs = 16, kMaxOutputs = 4, kMaxRank = 16;

struct Layout {
  int rank;
  int64_t total, sizes[kMaxRank], strides[kMaxInputs][kMaxRank];
};
