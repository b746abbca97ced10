// The linear layer as XLA calls it.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "handler.h"
#include "kernels.h"
#include "parallel.h"

namespace rekindle {
namespace {

constexpr int64_t kPartsAThread = 3;  // so that a thread that comes late finds less to do

// The scratch of a thread, and the rows that a part of a linear layer left in it.
struct Scratch {
  int64_t call = 0, first_row = 0;
  std::vector<char> bytes;

  // Makes room for the rows of a part, and returns whether they are there already.
  bool holds(int64_t for_call, int64_t row, int64_t size) {
    const bool found = call == for_call && first_row == row;
    call = for_call, first_row = row;
    if (static_cast<int64_t>(bytes.size()) < size) bytes.resize(size);
    return found;
  }
};

// Without a number in it, `onto` adds nothing.
ffi::Error linear(ffi::ThreadPool pool, Matrix x, ffi::AnyBuffer weight, Matrix onto, ffi::Result<Matrix> y,
                  bool columns) {
  const int64_t rows = x.dimensions()[0], in = x.dimensions()[1], out = y->dimensions()[columns ? 0 : 1];
  const int64_t panels = (out + kPanel - 1) / kPanel;
  const bool wide = weight.element_type() == ffi::F32;
  const bool added = onto.element_count() > 0;
  if (static_cast<int64_t>(weight.element_count()) != panels * kPanel * (wide ? in : (in + 1) / 2 * 2) ||
      y->dimensions()[columns ? 1 : 0] != rows || (added && (columns || !(onto.dimensions() == y->dimensions()))))
    return ffi::Error::InvalidArgument("a linear layer got arrays of shapes that do not fit together");
  const float* base = added ? onto.typed_data() : nullptr;
  const Linear all{x.typed_data(), weight.untyped_data(), base, y->typed_data(), rows, in, out, columns && rows > 1};
  const auto run = wide ? kernels()->linear_f32 : kernels()->linear_bf16;
  const int64_t blocks = (rows + kRows - 1) / kRows, wanted = kPartsAThread * std::max<int64_t>(1, pool.num_threads());
  const int64_t groups = std::min(panels, (wanted + blocks - 1) / blocks);
  static std::atomic<int64_t> calls{0};
  const int64_t call = ++calls;
  parallel_for(pool, blocks * groups, [&](int64_t part) {
    static thread_local Scratch scratch;
    const int64_t block = part / groups, group = part % groups;
    const int64_t first_row = rows * block / blocks, part_rows = rows * (block + 1) / blocks - first_row;
    const int64_t first_panel = panels * group / groups, part_panels = panels * (group + 1) / groups - first_panel;
    const bool there = scratch.holds(call, first_row, linear_scratch(part_rows, in));
    run(all, {first_row, part_rows, first_panel, part_panels, scratch.bytes.data(), there});
  });
  return ffi::Error::Success();
}

// Copies rows out of a packed weight, as float32; an id out of range is taken for the nearest that there is.
ffi::Error look_up(ffi::AnyBuffer weight, Ids ids, ffi::Result<Matrix> rows) {
  const int64_t in = rows->dimensions()[1], count = rows->dimensions()[0];
  const bool wide = weight.element_type() == ffi::F32;
  const int64_t depth = wide ? 1 : 2, size = (in + depth - 1) / depth * depth * kPanel;
  const int64_t padded = static_cast<int64_t>(weight.element_count()) / std::max<int64_t>(1, size) * kPanel;
  if (static_cast<int64_t>(ids.element_count()) != count || padded < 1)
    return ffi::Error::InvalidArgument("a look-up got arrays of shapes that do not fit together");
  for (int64_t i = 0; i < count; ++i) {
    const int64_t id = std::clamp<int64_t>(ids.typed_data()[i], 0, padded - 1);
    const int64_t first = id / kPanel * size + id % kPanel * depth;
    float* to = rows->typed_data() + i * in;
    for (int64_t k = 0; k < in; ++k) {
      const int64_t place = first + k / depth * depth * kPanel + k % depth;
      if (wide) {
        to[k] = static_cast<const float*>(weight.untyped_data())[place];
      } else {
        const uint32_t bits = uint32_t{static_cast<const uint16_t*>(weight.untyped_data())[place]} << 16;
        std::memcpy(to + k, &bits, sizeof bits);
      }
    }
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace rekindle

REKINDLE_HANDLER(rekindle_linear, rekindle::linear,
                 xla::ffi::Ffi::Bind()
                     .Ctx<xla::ffi::ThreadPool>()
                     .Arg<rekindle::Matrix>()
                     .Arg<xla::ffi::AnyBuffer>()
                     .Arg<rekindle::Matrix>()
                     .Ret<rekindle::Matrix>()
                     .Attr<bool>("columns"));

REKINDLE_HANDLER(rekindle_look_up, rekindle::look_up,
                 xla::ffi::Ffi::Bind().Arg<xla::ffi::AnyBuffer>().Arg<rekindle::Ids>().Ret<rekindle::Matrix>());
