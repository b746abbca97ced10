// XLA handlers of writes into pages and copies of pages. The pool is updated in place.
#include <cstring>

#include "kernels.h"
#include "later.h"
#include "vector.h"

namespace rekindle {
namespace {

using Indices = ffi::Buffer<ffi::S32, 1>;
using Index = ffi::Buffer<ffi::S32, 0>;
using Blocks = ffi::Buffer<ffi::F32, 5>;

constexpr int64_t kSmall = 64 * 1024;  // numbers below which waking another thread takes longer

ffi::Error in_place(ffi::AnyBuffer& pages, ffi::Result<ffi::AnyBuffer>& written) {
  if (pages.untyped_data() != written->untyped_data())
    return ffi::Error::Internal("pages are written in place, but the program gave the result another place");
  return ffi::Error::Success();
}

// Returns the size of one page in bytes, or 0 for a page outside the pool.
int64_t page_bytes(ffi::AnyBuffer& pages, int64_t page) {
  const auto shape = pages.dimensions();
  if (page < 0 || page >= shape[0]) return 0;
  return static_cast<int64_t>(pages.size_bytes()) / shape[0];
}

// Copies rows of numbers into pages.
void copy(float* to, const float* from, int64_t rows, int64_t head_dim) {
  std::memcpy(to, from, rows * head_dim * sizeof(float));
}

void copy(uint16_t* to, const float* from, int64_t rows, int64_t head_dim) {
  for (int64_t i = 0; i < rows * head_dim; ++i) to[i] = narrow(from[i]);
}

void copy(int8_t* to, const float* from, int64_t rows, int64_t head_dim) {
  kernels()->quantize(from, rows, head_dim, to);
}

// Leaves a pool uninitialised.
ffi::Error empty(ffi::Result<ffi::AnyBuffer>) { return ffi::Error::Success(); }

// Writes blocks of keys and values. A block outside the pool is skipped.
template <typename Number>
ffi::Future write_blocks(ffi::ThreadPool& pool, ffi::AnyBuffer& pages, Blocks& kv, const int32_t* ids,
                         const int32_t* offsets) {
  const auto shape = pages.dimensions(), block = kv.dimensions();
  const int64_t sides = block[1] * block[2], tokens = block[3], head_dim = block[4], page_size = shape[3];
  const int64_t width = shape[4];
  const int64_t count = block[0], num_pages = shape[0];
  const float* all = kv.typed_data();
  Number* into = static_cast<Number*>(pages.untyped_data());
  auto body = [=](int64_t i) {
    const int64_t id = ids[i], offset = offsets[i];
    if (id < 0 || id >= num_pages || offset < 0 || offset + tokens > page_size) return;
    const float* from = all + i * sides * tokens * head_dim;
    Number* to = into + (id * sides * page_size + offset) * width;
    for (int64_t side = 0; side < sides; ++side, from += tokens * head_dim, to += page_size * width)
      copy(to, from, tokens, head_dim);
  };
  if (static_cast<int64_t>(kv.element_count()) >= kSmall) return in_parts(pool, count, body);
  for (int64_t i = 0; i < count; ++i) body(i);
  return done();
}

ffi::Future write(ffi::ThreadPool pool, ffi::AnyBuffer pages, Blocks kv, Indices ids, Indices offsets,
                  ffi::Result<ffi::AnyBuffer> written) {
  const auto shape = pages.dimensions(), block = kv.dimensions();
  if (shape.size() != 5 || block[1] != shape[1] || block[2] != shape[2] ||
      (pages.element_type() == ffi::S8 ? scaled_width(block[4]) : block[4]) != shape[4] ||
      ids.dimensions()[0] != block[0] || offsets.dimensions()[0] != block[0])
    return invalid(
        "writing expects pages (pages, sides, kv_heads, page_size, width), blocks (blocks, "
        "sides, kv_heads, block_tokens, head_dim), and a page and an offset of each block");
  if (auto error = in_place(pages, written); error.failure()) return failed(error);
  switch (pages.element_type()) {
    case ffi::F32:
      return write_blocks<float>(pool, pages, kv, ids.typed_data(), offsets.typed_data());
    case ffi::BF16:
    case ffi::U16:
      return write_blocks<uint16_t>(pool, pages, kv, ids.typed_data(), offsets.typed_data());
    case ffi::S8:
      if (kernels() == nullptr) return failed(ffi::Error::Internal("no kernels were built for this processor"));
      return write_blocks<int8_t>(pool, pages, kv, ids.typed_data(), offsets.typed_data());
    default:
      return invalid("writing expects pages of float32, bfloat16 or int8");
  }
}

// Copies a page out of the pool; zeros for a page outside it.
ffi::Error read_page(ffi::AnyBuffer pages, Index id, ffi::Result<ffi::AnyBuffer> content) {
  const int64_t page = id.typed_data()[0], bytes = page_bytes(pages, page);
  std::memset(content->untyped_data(), 0, bytes == 0 ? content->size_bytes() : 0);
  if (bytes == 0) return ffi::Error::Success();
  if (static_cast<int64_t>(content->size_bytes()) != bytes)
    return ffi::Error::InvalidArgument("reading a page expects a result of the size of one page");
  std::memcpy(content->untyped_data(), static_cast<const char*>(pages.untyped_data()) + page * bytes, bytes);
  return ffi::Error::Success();
}

// Copies a page into the pool; a page outside it is skipped.
ffi::Error write_page(ffi::AnyBuffer pages, Index id, ffi::AnyBuffer content, ffi::Result<ffi::AnyBuffer> written) {
  if (auto error = in_place(pages, written); error.failure()) return error;
  const int64_t page = id.typed_data()[0], bytes = page_bytes(pages, page);
  if (bytes == 0) return ffi::Error::Success();
  if (static_cast<int64_t>(content.size_bytes()) != bytes)
    return ffi::Error::InvalidArgument("writing a page expects content of the size of one page");
  std::memcpy(static_cast<char*>(pages.untyped_data()) + page * bytes, content.untyped_data(), bytes);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace rekindle

REKINDLE_HANDLER(rekindle_empty, rekindle::empty, xla::ffi::Ffi::Bind().Ret<xla::ffi::AnyBuffer>());

REKINDLE_HANDLER(rekindle_write, rekindle::write,
                 xla::ffi::Ffi::Bind()
                     .Ctx<xla::ffi::ThreadPool>()
                     .Arg<xla::ffi::AnyBuffer>()
                     .Arg<rekindle::Blocks>()
                     .Arg<rekindle::Indices>()
                     .Arg<rekindle::Indices>()
                     .Ret<xla::ffi::AnyBuffer>());

REKINDLE_HANDLER(rekindle_read_page, rekindle::read_page,
                 xla::ffi::Ffi::Bind().Arg<xla::ffi::AnyBuffer>().Arg<rekindle::Index>().Ret<xla::ffi::AnyBuffer>());

REKINDLE_HANDLER(rekindle_write_page, rekindle::write_page,
                 xla::ffi::Ffi::Bind()
                     .Arg<xla::ffi::AnyBuffer>()
                     .Arg<rekindle::Index>()
                     .Arg<xla::ffi::AnyBuffer>()
                     .Ret<xla::ffi::AnyBuffer>());
