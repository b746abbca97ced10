// XLA handlers of the linear layer over weights in quantized blocks.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels.h"
#include "row_parts.h"
#include "stored.h"

namespace rekindle {
namespace {

using Bytes = ffi::Buffer<ffi::U8, 1>;
using GroupedBytes = ffi::Buffer<ffi::U8, 2>;
using Integers = ffi::Span<const int64_t>;

// The runs of a weight.
struct Runs {
  std::vector<Run> runs;
  int64_t outputs = 0, panels = 0, bytes = 0;
  bool valid;

  // Takes the kind of each run, its groups in a block, and its rows.
  Runs(Integers kinds, Integers groups, Integers rows, int64_t in) {
    valid = kinds.size() > 0 && kinds.size() == groups.size() && kinds.size() == rows.size();
    for (size_t i = 0; valid && i < kinds.size(); ++i) {
      valid =
          kinds[i] >= 0 && kinds[i] < kStoredKinds && groups[i] > 0 && rows[i] > 0 && in % (kGroup * groups[i]) == 0;
      if (!valid) return;
      const int64_t own = (rows[i] + kPanel - 1) / kPanel;
      runs.push_back({kinds[i], groups[i], outputs, rows[i], panels, own, bytes});
      outputs += rows[i];
      panels += own;
      bytes += own * panel_bytes(kStored[kinds[i]], groups[i], in);
    }
  }
};

// The data of a call outside of XLA's buffers.
struct Held {
  std::vector<Run> runs;
  std::unique_ptr<float[]> inputs;
};

ffi::Future compute(ffi::ThreadPool& pool, std::vector<StoredLinear> layers, int64_t panels,
                    std::shared_ptr<Held> held) {
  for (StoredLinear& layer : layers) {
    layer.runs = held->runs.data();
    layer.count = static_cast<int64_t>(held->runs.size());
  }
  const int64_t in = layers.empty() ? 0 : layers[0].all.in;
  const auto size = [in](int64_t rows) { return stored_scratch(rows, in); };
  return in_row_parts(pool, layers, panels, size, kernels()->linear_stored, std::move(held));
}

// An empty `norm`, `bias` or `onto` stands for none.
ffi::Future linear(ffi::ThreadPool pool, Matrix x, Bytes weight, Vector norm, Vector bias, Matrix onto,
                   ffi::Result<Matrix> y, Integers kinds, Integers groups, Integers run_rows, int64_t most,
                   bool columns, bool gated, float eps, bool centred) {
  const int64_t features = x.dimensions()[1], normed = norm.element_count();
  const int64_t rows = x.dimensions()[0], in = features / (gated ? 2 : 1), out = y->dimensions()[columns ? 0 : 1];
  Runs runs(kinds, groups, run_rows, in);
  const bool added = onto.element_count() > 0;
  if (!runs.valid || runs.outputs != out || static_cast<int64_t>(weight.element_count()) != runs.bytes ||
      y->dimensions()[columns ? 1 : 0] != rows || (gated && (normed || features % 2)) ||
      (normed && normed != features) || !fits(bias, normed, centred) ||
      (added && (columns || !(onto.dimensions() == y->dimensions()))))
    return invalid("a linear layer over quantized blocks got arrays of shapes that do not fit together");
  auto held = std::make_shared<Held>();
  held->runs = std::move(runs.runs);
  if (gated || normed) held->inputs.reset(new float[rows * in]);
  if (gated) kernels()->gate({x.typed_data(), held->inputs.get(), in}, 0, rows);
  if (normed)
    kernels()->norm({x.typed_data(), norm.typed_data(), data_or_null(bias), held->inputs.get(), in, eps, centred}, 0,
                    rows);
  const float* read = held->inputs ? held->inputs.get() : x.typed_data();
  const float* base = added ? onto.typed_data() : nullptr;
  const Linear all{read, weight.typed_data(), base, y->typed_data(), rows, in, out, columns && rows > 1};
  return compute(pool, {{all, nullptr, 0, most}}, runs.panels, std::move(held));
}

// The rows of each group are multiplied by the group's weight.
ffi::Future grouped_linear(ffi::ThreadPool pool, Matrix x, Ids counts, GroupedBytes weight, ffi::Result<Matrix> y,
                           Integers kinds, Integers groups, Integers run_rows, int64_t most) {
  const int64_t rows = x.dimensions()[0], in = x.dimensions()[1], out = y->dimensions()[1];
  const int64_t weights = counts.element_count();
  Runs runs(kinds, groups, run_rows, in);
  if (!runs.valid || runs.outputs != out || weight.dimensions()[0] != weights || weight.dimensions()[1] != runs.bytes ||
      y->dimensions()[0] != rows)
    return invalid("grouped linear layers over quantized blocks got arrays of shapes that do not fit together");
  auto held = std::make_shared<Held>();
  held->runs = std::move(runs.runs);
  std::vector<StoredLinear> layers;
  int64_t row = 0;
  for (int64_t group = 0; group < weights; ++group) {
    const int64_t count = std::clamp<int64_t>(counts.typed_data()[group], 0, rows - row);
    const uint8_t* own = weight.typed_data() + group * runs.bytes;
    const Linear all{x.typed_data() + row * in, own, nullptr, y->typed_data() + row * out, count, in, out, false};
    if (count > 0) layers.push_back({all, nullptr, 0, most});
    row += count;
  }
  std::fill(y->typed_data() + row * out, y->typed_data() + rows * out, 0.0f);  // rows of no group
  return compute(pool, std::move(layers), runs.panels, std::move(held));
}

// Copies rows out of a weight, as float32; an id out of range is clamped.
ffi::Error look_up(Bytes weight, Ids ids, ffi::Result<Matrix> rows, Integers kinds, Integers groups,
                   Integers run_rows) {
  const int64_t in = rows->dimensions()[1], count = rows->dimensions()[0];
  const Runs runs(kinds, groups, run_rows, in);
  if (!runs.valid || static_cast<int64_t>(weight.element_count()) != runs.bytes ||
      static_cast<int64_t>(ids.element_count()) != count)
    return ffi::Error::InvalidArgument("a look-up in quantized blocks got arrays of shapes that do not fit together");
  for (int64_t i = 0; i < count; ++i) {
    const int64_t id = std::clamp<int64_t>(ids.typed_data()[i], 0, runs.outputs - 1);
    const Run* run = runs.runs.data();
    while (id >= run->first_output + run->outputs) ++run;
    const int64_t row = id - run->first_output, size = panel_bytes(kStored[run->kind], run->groups, in);
    const uint8_t* panel = weight.typed_data() + run->offset + row / kPanel * size;
    read_output(*run, in, panel, row % kPanel, rows->typed_data() + i * in, 1);
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace rekindle

REKINDLE_HANDLER(rekindle_stored_linear, rekindle::linear,
                 xla::ffi::Ffi::Bind()
                     .Ctx<xla::ffi::ThreadPool>()
                     .Arg<rekindle::Matrix>()
                     .Arg<rekindle::Bytes>()
                     .Arg<rekindle::Vector>()
                     .Arg<rekindle::Vector>()
                     .Arg<rekindle::Matrix>()
                     .Ret<rekindle::Matrix>()
                     .Attr<rekindle::Integers>("kinds")
                     .Attr<rekindle::Integers>("groups")
                     .Attr<rekindle::Integers>("rows")
                     .Attr<int64_t>("most")
                     .Attr<bool>("columns")
                     .Attr<bool>("gated")
                     .Attr<float>("eps")
                     .Attr<bool>("centred"));

REKINDLE_HANDLER(rekindle_stored_grouped_linear, rekindle::grouped_linear,
                 xla::ffi::Ffi::Bind()
                     .Ctx<xla::ffi::ThreadPool>()
                     .Arg<rekindle::Matrix>()
                     .Arg<rekindle::Ids>()
                     .Arg<rekindle::GroupedBytes>()
                     .Ret<rekindle::Matrix>()
                     .Attr<rekindle::Integers>("kinds")
                     .Attr<rekindle::Integers>("groups")
                     .Attr<rekindle::Integers>("rows")
                     .Attr<int64_t>("most"));

REKINDLE_HANDLER(rekindle_stored_look_up, rekindle::look_up,
                 xla::ffi::Ffi::Bind()
                     .Arg<rekindle::Bytes>()
                     .Arg<rekindle::Ids>()
                     .Ret<rekindle::Matrix>()
                     .Attr<rekindle::Integers>("kinds")
                     .Attr<rekindle::Integers>("groups")
                     .Attr<rekindle::Integers>("rows"));
