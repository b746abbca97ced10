// XLA handlers of row-wise computations: normalisation, rotary position embedding, the gate.
#include <algorithm>

#include "kernels.h"
#include "later.h"

namespace rekindle {
namespace {

using Heads = ffi::Buffer<ffi::F32, 3>;
using Pairs = ffi::Buffer<ffi::F32, 4>;

constexpr int64_t kNumbers = 16384;  // the least numbers of a part: waking a thread for fewer takes longer

// Calls `run(first, rows)` for parts of the rows, each row with so many numbers.
template <typename Run>
ffi::Future for_rows(ffi::ThreadPool& pool, int64_t rows, int64_t numbers, Run run) {
  const int64_t parts = std::clamp<int64_t>(rows * numbers / kNumbers, 1, std::max<int64_t>(rows, 1));
  return in_parts(pool, parts, [=](int64_t part) {
    const int64_t first = rows * part / parts;
    run(first, rows * (part + 1) / parts - first);
  });
}

// An empty `bias` stands for none.
ffi::Future norm(ffi::ThreadPool pool, Matrix x, Vector weight, Vector bias, ffi::Result<Matrix> y, float eps,
                 bool centred) {
  const int64_t rows = x.dimensions()[0], features = x.dimensions()[1];
  if (static_cast<int64_t>(weight.element_count()) != features || y->element_count() != x.element_count() ||
      !fits(bias, features, centred))
    return invalid("a normalisation got arrays of shapes that do not fit together");
  const Norm all{x.typed_data(), weight.typed_data(), data_or_null(bias), y->typed_data(), features, eps, centred};
  return for_rows(pool, rows, features, [=](int64_t first, int64_t count) { kernels()->norm(all, first, count); });
}

ffi::Future rotate(ffi::ThreadPool pool, Heads x, Matrix cos, Matrix sin, ffi::Result<Heads> q, ffi::Result<Pairs> kv) {
  const int64_t tokens = x.dimensions()[0], head_dim = x.dimensions()[2], pairs = cos.dimensions()[1];
  const int64_t heads = q->dimensions()[1], kv_heads = kv->dimensions()[2];
  if (x.dimensions()[1] != heads + 2 * kv_heads || 2 * pairs > head_dim || cos.dimensions()[0] != tokens ||
      !(sin.dimensions() == cos.dimensions()) ||
      static_cast<int64_t>(q->element_count()) != tokens * heads * head_dim ||
      static_cast<int64_t>(kv->element_count()) != tokens * 2 * kv_heads * head_dim)
    return invalid("a rotation got arrays of shapes that do not fit together");
  const Rotation all{x.typed_data(),  cos.typed_data(), sin.typed_data(),
                     q->typed_data(), kv->typed_data(), heads,
                     kv_heads,        head_dim,         pairs};
  return for_rows(pool, tokens, (heads + 2 * kv_heads) * head_dim,
                  [=](int64_t first, int64_t count) { kernels()->rotate(all, first, count); });
}

ffi::Future gate(ffi::ThreadPool pool, Matrix x, ffi::Result<Matrix> y) {
  const int64_t rows = x.dimensions()[0], features = y->dimensions()[1];
  if (x.dimensions()[1] != 2 * features || y->dimensions()[0] != rows)
    return invalid("a gate got arrays of shapes that do not fit together");
  const Gate all{x.typed_data(), y->typed_data(), features};
  return for_rows(pool, rows, 2 * features, [=](int64_t first, int64_t count) { kernels()->gate(all, first, count); });
}

}  // namespace
}  // namespace rekindle

REKINDLE_HANDLER(rekindle_norm, rekindle::norm,
                 xla::ffi::Ffi::Bind()
                     .Ctx<xla::ffi::ThreadPool>()
                     .Arg<rekindle::Matrix>()
                     .Arg<rekindle::Vector>()
                     .Arg<rekindle::Vector>()
                     .Ret<rekindle::Matrix>()
                     .Attr<float>("eps")
                     .Attr<bool>("centred"));

REKINDLE_HANDLER(rekindle_rotate, rekindle::rotate,
                 xla::ffi::Ffi::Bind()
                     .Ctx<xla::ffi::ThreadPool>()
                     .Arg<rekindle::Heads>()
                     .Arg<rekindle::Matrix>()
                     .Arg<rekindle::Matrix>()
                     .Ret<rekindle::Heads>()
                     .Ret<rekindle::Pairs>());

REKINDLE_HANDLER(rekindle_gate, rekindle::gate,
                 xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>().Arg<rekindle::Matrix>().Ret<rekindle::Matrix>());
