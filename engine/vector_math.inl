// Arithmetic on vectors of floats, shared as text by the files that are
// compiled for one instruction set each. Not a header: everything here has
// internal linkage, because a function that several such files share must never
// be merged by the linker (it would bring an instruction into a program that
// runs on a CPU without it). For the same reason nothing of the standard
// library is called.
//
// The including file has defined, in an anonymous namespace of baton::engine:
//   kLanes        floats of a vector
//   Floats, Ints, Words   vectors of kLanes float, int32_t, uint32_t
//   Halves        vector of kLanes uint16_t
//   Floats Set(float)             all lanes equal
//   Floats Fma(Floats a, Floats b, Floats c)   a * b + c
//   float SumLanes(Floats), float MaxLanes(Floats)   always in the same order

namespace baton::engine {
namespace {

template <typename V, typename T>
inline V Load(const T* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}

template <typename V, typename T>
inline void Store(T* p, V v) {
  __builtin_memcpy(p, &v, sizeof(v));
}

// The first `count` lanes from memory, zero in the others.
template <typename V, typename T>
inline V LoadPart(const T* p, int32_t count) {
  V v = {};
  __builtin_memcpy(&v, p, count * sizeof(T));
  return v;
}

template <typename V, typename T>
inline void StorePart(T* p, V v, int32_t count) {
  __builtin_memcpy(p, &v, count * sizeof(T));
}

inline Words Bits(Floats x) { return (Words)x; }

// Rounds to bfloat16, to nearest even; NaN stays NaN. The bits lie in the low
// half of each lane.
inline Words RoundToBf16(Floats x) {
  const Words bits = Bits(x);
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words quiet_nan = (bits >> 16) | 0x0040u;
  const Words magnitude = bits & 0x7fffffffu;
  return magnitude > 0x7f800000u ? quiet_nan : rounded;
}

inline Halves Narrow(Words w) { return __builtin_convertvector(w, Halves); }

inline Floats WidenBf16(Halves h) {
  return (Floats)(__builtin_convertvector(h, Words) << 16);
}

// Zeros and scales of grids of 4 bits, from their codes (engine/int4_grid.h).
inline Ints Int4Zeros(Words codes) { return (Ints)(codes & 15u); }
inline Floats Int4Scales(Words codes) {
  return (Floats)((codes << 12 & 0x0fff0000u) | 96u << 23);
}

// exp(x) within 2 units in the last place; 0 below -87.3, infinity above 88.
// Polynomial of degree 6 on [-ln2/2, ln2/2] (coefficients of Cephes expf).
inline Floats Exp(Floats x) {
  // Adding 1.5 * 2^23 rounds to an integer.
  const Floats magic = Set(12582912.0f);
  const Floats n = Fma(x, Set(1.44269504088896341f), magic) - magic;
  Floats r = Fma(n, Set(-0.693359375f), x);
  r = Fma(n, Set(2.12194440e-4f), r);
  Floats p = Set(1.9875691500e-4f);
  p = Fma(p, r, Set(1.3981999507e-3f));
  p = Fma(p, r, Set(8.3334519073e-3f));
  p = Fma(p, r, Set(4.1665795894e-2f));
  p = Fma(p, r, Set(1.6666665459e-1f));
  p = Fma(p, r, Set(5.0000001201e-1f));
  const Floats y = Fma(p * r, r, r) + Set(1.0f);
  const Ints exponent = (__builtin_convertvector(n, Ints) + 127) << 23;
  Floats result = y * (Floats)exponent;
  result = x < Set(-87.3f) ? Set(0.0f) : result;
  return x > Set(88.0f) ? Set(__builtin_inff()) : result;
}

inline Floats Max(Floats a, Floats b) { return a > b ? a : b; }

}  // namespace
}  // namespace baton::engine
