// Normalisation as XLA calls it.
#include <algorithm>

#include "handler.h"
#include "kernels.h"
#include "parallel.h"

namespace rekindle {
namespace {

constexpr int64_t kNumbers = 16384;  // of a part at least: fewer take less time than to wake a thread

ffi::Error rms_norm(ffi::ThreadPool pool, Matrix x, Vector weight, ffi::Result<Matrix> y, float eps) {
  const int64_t rows = x.dimensions()[0], features = x.dimensions()[1];
  if (static_cast<int64_t>(weight.element_count()) != features || y->element_count() != x.element_count())
    return ffi::Error::InvalidArgument("a normalisation got arrays of shapes that do not fit together");
  const Norm all{x.typed_data(), weight.typed_data(), y->typed_data(), features, eps};
  const int64_t parts = std::clamp<int64_t>(rows * features / kNumbers, 1, std::max<int64_t>(rows, 1));
  parallel_for(pool, parts, [&](int64_t part) {
    const int64_t first = rows * part / parts;
    kernels()->rms_norm(all, first, rows * (part + 1) / parts - first);
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace rekindle

REKINDLE_HANDLER(rekindle_rms_norm, rekindle::rms_norm,
                 xla::ffi::Ffi::Bind()
                     .Ctx<xla::ffi::ThreadPool>()
                     .Arg<rekindle::Matrix>()
                     .Arg<rekindle::Vector>()
                     .Ret<rekindle::Matrix>()
                     .Attr<float>("eps"));
