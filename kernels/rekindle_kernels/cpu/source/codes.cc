// Widening of codes into packed weights, for one instruction set and with exact rounding.
#include "codes.h"

#include "pack.h"

namespace rekindle {
namespace {

using Reader = void (*)(const Codes& codes, int64_t row, int64_t begin, int64_t count, float* numbers);

template <int kBits, Form kForm>
Reader rounding_reader(const Codes& codes) {
  switch (codes.rounding) {
    case Rounding::kBfloat16:
      return read_codes<kBits, kForm, Rounding::kBfloat16>;
    case Rounding::kHalf:
      return read_codes<kBits, kForm, Rounding::kHalf>;
    default:
      return read_codes<kBits, kForm, Rounding::kNone>;
  }
}

Reader reader(const Codes& codes) {
  const Form form = form_of(codes);
  if (codes.bits == 4) {
    return form == Form::kIntegers ? rounding_reader<4, Form::kIntegers>(codes)
                                   : rounding_reader<4, Form::kTable>(codes);
  }
  switch (form) {
    case Form::kIntegers:
      return rounding_reader<8, Form::kIntegers>(codes);
    case Form::kSigned:
      return rounding_reader<8, Form::kSigned>(codes);
    case Form::kE4M3:
      return rounding_reader<8, Form::kE4M3>(codes);
    default:
      return rounding_reader<8, Form::kTable>(codes);
  }
}

constexpr int kTogether = 256;

// Stores numbers in their packed type.
inline const float* stored(const float* numbers, float*) { return numbers; }
inline const uint16_t* stored(const float* numbers, uint16_t* halves) {
  for (int i = 0; i < kTogether; i += kLanes) put(halves + i, load(numbers + i));
  return halves;
}

// One loop for all readers, called once for 256 numbers: a loop for each of them took five times as long to compile.
template <typename Number>
void pack_any(Number* packed, int64_t first, const Codes& codes, int64_t rows) {
  const Reader read = reader(codes);
  float numbers[kTogether] = {};
  Number halves[kTogether];
  pack<kTogether>(packed, first, rows, codes.in, [&](int64_t row, int64_t begin) {
    read(codes, row, begin, least(kTogether, codes.in - begin), numbers);
    return stored(numbers, halves);
  });
}

}  // namespace

namespace REKINDLE_ISA {

void pack_codes_f32(const Codes& codes, float* packed, int64_t first, int64_t rows) {
  pack_any(packed, first, codes, rows);
}

void pack_codes_bf16(const Codes& codes, uint16_t* packed, int64_t first, int64_t rows) {
  pack_any(packed, first, codes, rows);
}

}  // namespace REKINDLE_ISA
}  // namespace rekindle
