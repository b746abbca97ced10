// The mass of tokens as XLA calls it.
#include <algorithm>
#include <vector>

#include "handler.h"
#include "kernels.h"
#include "parallel.h"

namespace rekindle {
namespace {

ffi::Error mass(ffi::ThreadPool pool, Matrix x, Vector largest, Vector temperature, Vector least,
                ffi::Result<Vector> sums) {
  const int64_t tokens = x.dimensions()[0], rows = x.dimensions()[1];
  for (const auto& each : {largest, temperature, least, *sums})
    if (static_cast<int64_t>(each.element_count()) != rows)
      return ffi::Error::InvalidArgument("a mass got arrays of shapes that do not fit together");
  const Mass all{x.typed_data(), largest.typed_data(), temperature.typed_data(), least.typed_data(), tokens, rows};
  const int64_t parts = (tokens + kTokens - 1) / kTokens;
  std::vector<float> of_parts(parts * rows);
  parallel_for(pool, parts, [&](int64_t part) {
    const int64_t first = part * kTokens;
    kernels()->mass(all, first, std::min(kTokens, tokens - first), of_parts.data() + part * rows);
  });
  float* to = sums->typed_data();
  std::fill_n(to, rows, 0.0f);
  for (int64_t part = 0; part < parts; ++part)
    for (int64_t row = 0; row < rows; ++row) to[row] += of_parts[part * rows + row];
  return ffi::Error::Success();
}

}  // namespace
}  // namespace rekindle

REKINDLE_HANDLER(rekindle_mass, rekindle::mass,
                 xla::ffi::Ffi::Bind()
                     .Ctx<xla::ffi::ThreadPool>()
                     .Arg<rekindle::Matrix>()
                     .Arg<rekindle::Vector>()
                     .Arg<rekindle::Vector>()
                     .Arg<rekindle::Vector>()
                     .Ret<rekindle::Vector>());
