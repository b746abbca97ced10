// Widening of codes into packed weights, for one instruction set and with exact rounding.
#include "codes.h"

#include "pack.h"

namespace rekindle {
namespace {

template <int kBits, Form kForm, Rounding kRounding, typename Number>
void pack_codes(Number* packed, int64_t first, const Codes& codes, int64_t rows) {
  constexpr int kTogether = 256;
  Number numbers[kTogether];
  pack<kTogether>(packed, first, rows, codes.in, [&](int64_t row, int64_t begin) {
    const int64_t count = least(kTogether, codes.in - begin);
    read_codes<kBits, kForm, kRounding>(codes, row, begin, count, numbers);
    return static_cast<const Number*>(numbers);
  });
}

template <int kBits, Form kForm, typename Number>
void pack_rounded(Number* packed, int64_t first, const Codes& codes, int64_t rows) {
  switch (codes.rounding) {
    case Rounding::kNone:
      return pack_codes<kBits, kForm, Rounding::kNone>(packed, first, codes, rows);
    case Rounding::kBfloat16:
      return pack_codes<kBits, kForm, Rounding::kBfloat16>(packed, first, codes, rows);
    case Rounding::kHalf:
      return pack_codes<kBits, kForm, Rounding::kHalf>(packed, first, codes, rows);
  }
}

template <typename Number>
void pack_any(Number* packed, int64_t first, const Codes& codes, int64_t rows) {
  const Form form = form_of(codes);
  if (codes.bits == 4) {
    form == Form::kIntegers ? pack_rounded<4, Form::kIntegers>(packed, first, codes, rows)
                            : pack_rounded<4, Form::kTable>(packed, first, codes, rows);
    return;
  }
  switch (form) {
    case Form::kTable:
      return pack_rounded<8, Form::kTable>(packed, first, codes, rows);
    case Form::kIntegers:
      return pack_rounded<8, Form::kIntegers>(packed, first, codes, rows);
    case Form::kSigned:
      return pack_rounded<8, Form::kSigned>(packed, first, codes, rows);
    case Form::kE4M3:
      return pack_rounded<8, Form::kE4M3>(packed, first, codes, rows);
  }
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
