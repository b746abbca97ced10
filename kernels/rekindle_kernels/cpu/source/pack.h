// The writing of weights in the packed form of the linear layers.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace rekindle {
namespace {

// Asks the system for all memory pages between two addresses at once: a fifth faster than one by one at the first use.
inline void populate([[maybe_unused]] void* begin, [[maybe_unused]] void* end) {
#if defined(__linux__)
  constexpr uintptr_t kPage = 4096;
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, since Linux 5.14; others refuse it
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + kPage - 1) / kPage * kPage;
  const uintptr_t last = reinterpret_cast<uintptr_t>(end) / kPage * kPage;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, kPopulateWrite);
#endif
}

// Writes rows of a weight into panels of 32 rows. Four bytes of each row stay together: one float32 number or two
// bfloat16 ones.
//
// `read(row, begin)` returns a pointer to `kTogether` numbers of a row from an input on: few enough to keep the panel's
// lines in the first cache, and enough to read whole lines of the rows ahead (256 take half the time of 64).
template <int kTogether, typename Number, typename Read>
void pack(Number* packed, int64_t first, int64_t rows, int64_t in, const Read& read) {
  constexpr int64_t kDepth = 4 / sizeof(Number), kLine = kDepth * kPanel;
  const int64_t size = (in + kDepth - 1) / kDepth * kLine;
  for (int64_t done = 0; done < rows;) {
    const int64_t lane = (first + done) % kPanel, lanes = kPanel - lane < rows - done ? kPanel - lane : rows - done;
    Number* panel = packed + (first + done) / kPanel * size + lane * kDepth;
    if (lane == 0) populate(panel, panel + size);
    for (int64_t begin = 0; begin < in; begin += kTogether) {
      const int64_t count = kTogether < in - begin ? kTogether : in - begin;
      for (int64_t l = 0; l < lanes; ++l) {
        const Number* numbers = read(done + l, begin);
        Number* to = panel + begin * kPanel + l * kDepth;
        int64_t i = 0;
        for (; i + kDepth <= count; i += kDepth) std::memcpy(to + i * kPanel, numbers + i, 4);
        for (; i < count; ++i) to[i * kPanel] = numbers[i];
      }
    }
    done += lanes;
  }
}

}  // namespace
}  // namespace rekindle
