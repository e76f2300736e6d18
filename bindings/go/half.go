package kvstore

import "math"

// Float16 holds an IEEE 754 binary16 number. It stores; compute in float32.
type Float16 uint16

// BFloat16 holds a bfloat16 number, the upper half of a float32. It stores; compute in float32.
type BFloat16 uint16

// ToFloat16 rounds to the nearest binary16 number, ties to even.
func ToFloat16(x float32) Float16 {
	bits := math.Float32bits(x)
	sign := uint32(bits>>16) & 0x8000
	magnitude := bits & 0x7fffffff
	switch {
	case magnitude > 0x7f800000: // NaN: stays one, and quiet
		return Float16(sign | 0x7e00 | magnitude>>13&0x3ff)
	case magnitude >= 0x47800000: // 65536 and above
		return Float16(sign | 0x7c00)
	case magnitude >= 0x38800000: // normal; a carry into the exponent is right, up to infinity
		return Float16(sign | roundShift(magnitude-0x38000000, 13))
	case magnitude < 0x33000000: // below half of the smallest subnormal
		return Float16(sign)
	default: // subnormal: counted in units of 2^-24
		mantissa := magnitude&0x7fffff | 0x800000
		return Float16(sign | roundShift(mantissa, 126-magnitude>>23))
	}
}

// Float32 returns the number; every binary16 number is a float32.
func (h Float16) Float32() float32 {
	sign := uint32(h&0x8000) << 16
	exponent := uint32(h>>10) & 0x1f
	mantissa := uint32(h & 0x3ff)
	switch exponent {
	case 0x1f:
		return math.Float32frombits(sign | 0x7f800000 | mantissa<<13)
	case 0:
		value := float32(mantissa) / (1 << 24)
		return math.Float32frombits(sign | math.Float32bits(value))
	default:
		return math.Float32frombits(sign | (exponent+112)<<23 | mantissa<<13)
	}
}

// ToBFloat16 rounds to the nearest bfloat16 number, ties to even.
func ToBFloat16(x float32) BFloat16 {
	bits := math.Float32bits(x)
	if x != x {
		return BFloat16(bits>>16 | 0x40)
	}
	return BFloat16(bits>>16&0x8000 | roundShift(bits&0x7fffffff, 16))
}

// Float32 returns the number; every bfloat16 number is a float32.
func (b BFloat16) Float32() float32 { return math.Float32frombits(uint32(b) << 16) }

// roundShift returns bits / 2^shift, rounded to the nearest integer, ties to even.
func roundShift(bits, shift uint32) uint32 {
	odd := bits >> shift & 1
	return (bits + (1<<(shift-1) - 1) + odd) >> shift
}
