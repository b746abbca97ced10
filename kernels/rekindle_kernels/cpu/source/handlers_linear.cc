// XLA handlers of the linear layer.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels.h"
#include "later.h"

namespace rekindle {
namespace {

constexpr int64_t kPartsAThread = 3;  // more than one, so that a late thread takes fewer

// The scratch of a thread, and the rows left in it by a part of a linear layer.
struct Scratch {
  int64_t rows = -1;
  std::vector<char> bytes;

  // Makes room for the rows of a part, identified by a number, and returns whether they are present already.
  bool holds(int64_t number, int64_t size) {
    const bool found = rows == number;
    rows = number;
    if (static_cast<int64_t>(bytes.size()) < size) bytes.resize(size);
    return found;
  }
};

using Numbers = std::shared_ptr<float[]>;

// Computes linear layers of equal shapes except for their rows, in parts taken by threads one after the other. Inputs
// outside XLA's buffers are kept alive until the end.
ffi::Future compute(ffi::ThreadPool& pool, bool wide, const Linear* layers, int64_t count, Numbers inputs = nullptr) {
  if (count == 0) return done();
  const auto run = wide ? kernels()->linear_f32 : kernels()->linear_bf16;
  const int64_t in = layers[0].in, panels = (layers[0].out + kPanel - 1) / kPanel;
  struct Rows {
    Linear all;
    int64_t first, rows;
  };
  std::vector<Rows> blocks;
  for (const Linear* all = layers; all < layers + count; ++all)
    for (int64_t block = 0, cut = (all->rows + kRows - 1) / kRows; block < cut; ++block) {
      const int64_t first = all->rows * block / cut;
      blocks.push_back({*all, first, all->rows * (block + 1) / cut - first});
    }
  const int64_t many = blocks.size(), wanted = kPartsAThread * std::max<int64_t>(1, pool.num_threads());
  const int64_t groups = std::min(panels, (wanted + many - 1) / many);
  static std::atomic<int64_t> calls{0};
  const int64_t call = calls += many;
  return in_parts(pool, many * groups, [=, blocks = std::move(blocks), inputs = std::move(inputs)](int64_t part) {
    static thread_local Scratch scratch;
    const int64_t block = part / groups, group = part % groups;
    const Rows& rows = blocks[block];
    const int64_t first_panel = panels * group / groups, part_panels = panels * (group + 1) / groups - first_panel;
    const bool there = scratch.holds(call - block, linear_scratch(rows.rows, in));
    run(rows.all, {rows.first, rows.rows, first_panel, part_panels, scratch.bytes.data(), there});
  });
}

// An empty `norm` or `onto` stands for none.
ffi::Future linear(ffi::ThreadPool pool, Matrix x, ffi::AnyBuffer weight, Vector norm, Matrix onto,
                   ffi::Result<Matrix> y, bool columns, bool gated, float eps) {
  const int64_t features = x.dimensions()[1], normed = norm.element_count();
  const int64_t rows = x.dimensions()[0], in = features / (gated ? 2 : 1), out = y->dimensions()[columns ? 0 : 1];
  const int64_t panels = (out + kPanel - 1) / kPanel;
  const bool wide = weight.element_type() == ffi::F32;
  const bool added = onto.element_count() > 0;
  if (static_cast<int64_t>(weight.element_count()) != panels * kPanel * (wide ? in : (in + 1) / 2 * 2) ||
      y->dimensions()[columns ? 1 : 0] != rows || (gated && (normed || features % 2)) ||
      (normed && normed != features) || (added && (columns || !(onto.dimensions() == y->dimensions()))))
    return invalid("a linear layer got arrays of shapes that do not fit together");
  const float* base = added ? onto.typed_data() : nullptr;
  Numbers inputs(gated || normed ? new float[rows * in] : nullptr);
  if (gated) kernels()->gate({x.typed_data(), inputs.get(), in}, 0, rows);
  if (normed) kernels()->rms_norm({x.typed_data(), norm.typed_data(), inputs.get(), in, eps}, 0, rows);
  const float* read = inputs ? inputs.get() : x.typed_data();
  const Linear all{read, weight.untyped_data(), base, y->typed_data(), rows, in, out, columns && rows > 1};
  return compute(pool, wide, &all, 1, std::move(inputs));
}

// The rows of each group are multiplied by the group's weight.
ffi::Future grouped_linear(ffi::ThreadPool pool, Matrix x, Ids counts, ffi::AnyBuffer weight, ffi::Result<Matrix> y) {
  const int64_t rows = x.dimensions()[0], in = x.dimensions()[1], out = y->dimensions()[1];
  const int64_t groups = counts.element_count(), panels = (out + kPanel - 1) / kPanel;
  const bool wide = weight.element_type() == ffi::F32;
  const int64_t size = panels * kPanel * (wide ? in : (in + 1) / 2 * 2);
  if (static_cast<int64_t>(weight.element_count()) != groups * size || y->dimensions()[0] != rows)
    return invalid("grouped linear layers got arrays of shapes that do not fit together");
  std::vector<Linear> all;
  int64_t row = 0;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t count = std::clamp<int64_t>(counts.typed_data()[group], 0, rows - row);
    const char* own = static_cast<const char*>(weight.untyped_data()) + group * size * (wide ? 4 : 2);
    if (count > 0)
      all.push_back({x.typed_data() + row * in, own, nullptr, y->typed_data() + row * out, count, in, out, false});
    row += count;
  }
  std::fill(y->typed_data() + row * out, y->typed_data() + rows * out, 0.0f);  // rows of no group
  return compute(pool, wide, all.data(), all.size());
}

// Copies rows out of a packed weight, as float32; an id out of range is clamped.
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
                     .Arg<rekindle::Vector>()
                     .Arg<rekindle::Matrix>()
                     .Ret<rekindle::Matrix>()
                     .Attr<bool>("columns")
                     .Attr<bool>("gated")
                     .Attr<float>("eps"));

REKINDLE_HANDLER(rekindle_grouped_linear, rekindle::grouped_linear,
                 xla::ffi::Ffi::Bind()
                     .Ctx<xla::ffi::ThreadPool>()
                     .Arg<rekindle::Matrix>()
                     .Arg<rekindle::Ids>()
                     .Arg<xla::ffi::AnyBuffer>()
                     .Ret<rekindle::Matrix>());

REKINDLE_HANDLER(rekindle_look_up, rekindle::look_up,
                 xla::ffi::Ffi::Bind().Arg<xla::ffi::AnyBuffer>().Arg<rekindle::Ids>().Ret<rekindle::Matrix>());
