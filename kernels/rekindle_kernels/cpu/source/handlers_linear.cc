// XLA handlers of the linear layer.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels.h"
#include "row_parts.h"

namespace rekindle {
namespace {

// Computes linear layers over dense weights, of equal shapes except for their rows.
ffi::Future compute(ffi::ThreadPool& pool, bool wide, const Linear* layers, int64_t count, Numbers inputs = nullptr) {
  if (count == 0) return done();
  const auto run = wide ? kernels()->linear_f32 : kernels()->linear_bf16;
  const int64_t in = layers[0].in, panels = (layers[0].out + kPanel - 1) / kPanel;
  const auto size = [in](int64_t rows) { return linear_scratch(rows, in); };
  return in_row_parts(pool, std::vector<Linear>(layers, layers + count), panels, size, run, std::move(inputs));
}

// An empty `norm`, `bias` or `onto` stands for none.
ffi::Future linear(ffi::ThreadPool pool, Matrix x, ffi::AnyBuffer weight, Vector norm, Vector bias, Matrix onto,
                   ffi::Result<Matrix> y, bool columns, bool gated, float eps, bool centred) {
  const int64_t features = x.dimensions()[1], normed = norm.element_count();
  const int64_t rows = x.dimensions()[0], in = features / (gated ? 2 : 1), out = y->dimensions()[columns ? 0 : 1];
  const int64_t panels = (out + kPanel - 1) / kPanel;
  const bool wide = weight.element_type() == ffi::F32;
  const bool added = onto.element_count() > 0;
  if (static_cast<int64_t>(weight.element_count()) != panels * kPanel * (wide ? in : (in + 1) / 2 * 2) ||
      y->dimensions()[columns ? 1 : 0] != rows || (gated && (normed || features % 2)) ||
      (normed && normed != features) || !fits(bias, normed, centred) ||
      (added && (columns || !(onto.dimensions() == y->dimensions()))))
    return invalid("a linear layer got arrays of shapes that do not fit together");
  const float* base = added ? onto.typed_data() : nullptr;
  Numbers inputs(gated || normed ? new float[rows * in] : nullptr);
  if (gated) kernels()->gate({x.typed_data(), inputs.get(), in}, 0, rows);
  if (normed)
    kernels()->norm({x.typed_data(), norm.typed_data(), data_or_null(bias), inputs.get(), in, eps, centred}, 0, rows);
  const float* read = inputs ? inputs.get() : x.typed_data();
  const Linear all{read, weight.untyped_data(), base, y->typed_data(), rows, in, out, columns && rows > 1};
  return compute(pool, wide, &all, 1, std::move(inputs));
}

// The rows of each group are multiplied by the group's weight, and added to `onto` unless it is empty.
ffi::Future grouped_linear(ffi::ThreadPool pool, Matrix x, Ids counts, ffi::AnyBuffer weight, Matrix onto,
                           ffi::Result<Matrix> y) {
  const int64_t rows = x.dimensions()[0], in = x.dimensions()[1], out = y->dimensions()[1];
  const bool added = onto.element_count() > 0;
  const int64_t groups = counts.element_count(), panels = (out + kPanel - 1) / kPanel;
  const bool wide = weight.element_type() == ffi::F32;
  const int64_t size = panels * kPanel * (wide ? in : (in + 1) / 2 * 2);
  if (static_cast<int64_t>(weight.element_count()) != groups * size || y->dimensions()[0] != rows ||
      (added && !(onto.dimensions() == y->dimensions())))
    return invalid("grouped linear layers got arrays of shapes that do not fit together");
  if (added && onto.typed_data() != y->typed_data())  // XLA had to keep it
    std::copy_n(onto.typed_data(), rows * out, y->typed_data());
  std::vector<Linear> all;
  int64_t row = 0;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t count = std::clamp<int64_t>(counts.typed_data()[group], 0, rows - row);
    const char* own = static_cast<const char*>(weight.untyped_data()) + group * size * (wide ? 4 : 2);
    float* of_group = y->typed_data() + row * out;
    if (count > 0)
      all.push_back({x.typed_data() + row * in, own, added ? of_group : nullptr, of_group, count, in, out, false});
    row += count;
  }
  if (!added) std::fill(y->typed_data() + row * out, y->typed_data() + rows * out, 0.0f);  // rows of no group
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
                     .Arg<rekindle::Vector>()
                     .Arg<rekindle::Matrix>()
                     .Ret<rekindle::Matrix>()
                     .Attr<bool>("columns")
                     .Attr<bool>("gated")
                     .Attr<float>("eps")
                     .Attr<bool>("centred"));

REKINDLE_HANDLER(rekindle_grouped_linear, rekindle::grouped_linear,
                 xla::ffi::Ffi::Bind()
                     .Ctx<xla::ffi::ThreadPool>()
                     .Arg<rekindle::Matrix>()
                     .Arg<rekindle::Ids>()
                     .Arg<xla::ffi::AnyBuffer>()
                     .Arg<rekindle::Matrix>()
                     .Ret<rekindle::Matrix>());

REKINDLE_HANDLER(rekindle_look_up, rekindle::look_up,
                 xla::ffi::Ffi::Bind().Arg<xla::ffi::AnyBuffer>().Arg<rekindle::Ids>().Ret<rekindle::Matrix>());
