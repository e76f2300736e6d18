//! Every codec in every build against scalar loops; and decoding of untrusted bytes.
#![allow(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "exact bits are compared, and small numbers converted"
)]

use half::{bf16, f16};

use super::{BLOCK, Codec, KINDS, Origin, Residuals};
use crate::kernel::Isa;
use crate::tensor::DType;
use kvstore_protocol::testing::Random;

const ORIGIN: Origin = Origin { key: 7, rank: 1, round: 3, block: 5 };
const SIZES: &[usize] = &[0, 1, 3, 15, 16, 17, 31, 32, 33, 1000, 2047, 2048, 2049, 4096, 5000];

fn codec(name: &str, params: &str) -> Codec {
    Codec::new(name, params).unwrap().unwrap()
}

/// Codecs with options that use all of their code.
fn codecs() -> Vec<Codec> {
    let with = [
        ("1bit", ""),
        ("1bit", "threshold=0.01"),
        ("1bit", "threshold=0"),
        ("1bit", "threshold=-0.5"),
        ("2bit", ""),
        ("2bit", "threshold=0.125"),
        ("fp16", "feedback=true"),
        ("bf16", "feedback=true"),
        ("int8", ""),
        ("int8", "feedback=true"),
        ("topk", ""),
        ("topk", "ratio=0.3,feedback=false"),
        ("topk", "ratio=1"),
        ("randomk", "seed=5"),
        ("randomk", "ratio=0.9,feedback=false"),
    ];
    with.map(|(name, params)| codec(name, params)).into()
}

fn isas() -> Vec<Isa> {
    ["scalar", "avx2", "avx512", "auto"].iter().filter_map(|isa| Isa::choose(isa).ok()).collect()
}

/// Around 1, with both signs.
fn usual(random: &mut Random) -> f32 {
    let bits = random.next();
    let magnitude = f32::from_bits(((120 + bits % 9) << 23 | bits >> 41) as u32);
    if bits >> 8 & 1 == 0 { magnitude } else { -magnitude }
}

fn special(random: &mut Random) -> f32 {
    let all = [
        0.0,
        f32::MAX,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        f32::from_bits(200),
        0.5,
        0.125,
        0.01,
        1.0,
        65_519.9,
        65_520.0,
        f32::INFINITY,
        f32::NAN,
        f32::from_bits(0x7F80_0001),
    ];
    let bits = random.next();
    let it = all[(bits >> 8) as usize % all.len()];
    if bits & 1 == 0 { it } else { -it }
}

fn numbers(random: &mut Random, count: usize, one_special_in: u64) -> Vec<f32> {
    let number = |_| {
        if random.one_in(one_special_in) { special(random) } else { usual(random) }
    };
    (0..count).map(number).collect()
}

/// Numbers of every kind: usual ones, with some special ones, almost all equal, all zero.
fn arrays(count: usize) -> Vec<Vec<f32>> {
    let mut random = Random::new(count as u64);
    let mut arrays: Vec<Vec<f32>> =
        [u64::MAX, 50, 2].iter().map(|&rare| numbers(&mut random, count, rare)).collect();
    arrays.push((0..count).map(|i| if i % 100 == 99 { 2.0 } else { -1.0 }).collect());
    arrays.push(vec![0.0; count]);
    arrays.push(vec![f32::from_bits(190); count]);
    arrays
}

fn encoded(codec: &Codec, isa: Isa, origin: Origin, input: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0xA5; codec.bytes(input.len())];
    codec.encode(isa, origin, input, &mut bytes);
    bytes
}

fn decoded(codec: &Codec, isa: Isa, origin: Origin, bytes: &[u8], count: usize) -> Vec<f32> {
    let mut out = vec![9.0; count];
    codec.decode(isa, origin, bytes, &mut out).unwrap();
    out
}

/// Equal bits; a NaN is any NaN.
fn is_same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

fn assert_same(found: &[f32], expected: &[f32], case: &str) {
    assert_eq!(found.len(), expected.len());
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!(is_same(*a, *b), "{case}: element {i} is {a}, not {b}");
    }
}

/// The decoded block, as the documents define it, one element at a time.
fn model(codec: &Codec, input: &[f32]) -> Option<Vec<f32>> {
    let own = codec.params.values();
    let each = |f: &dyn Fn(f32) -> f32| Some(input.iter().map(|&x| f(x)).collect());
    match codec.name() {
        "1bit" => each(&|x| if x > own[0] as f32 { 1.0 } else { -1.0 }),
        "2bit" => {
            let t = own[0] as f32;
            each(&|x| match x {
                _ if x.is_nan() => f32::NAN,
                _ if x >= t => t,
                _ if x <= -t => -t,
                _ => 0.0,
            })
        }
        "fp16" => each(&|x| f16::from_f32(x).to_f32()),
        "bf16" => each(&|x| bf16::from_f32(x).to_f32()),
        "int8" => {
            let most = input.iter().filter(|x| !x.is_nan()).fold(0.0f32, |a, x| a.max(x.abs()));
            let scale = most / 127.0;
            each(&|x| match x {
                _ if x.is_nan() => f32::NAN,
                _ if scale == 0.0 => 0.0,
                _ if scale == f32::INFINITY => {
                    if x.is_infinite() {
                        x
                    } else {
                        0.0
                    }
                }
                _ => {
                    let q = (x / scale).round_ties_even().clamp(-127.0, 127.0);
                    if q == 0.0 { 0.0 } else { q * scale }
                }
            })
        }
        "topk" => {
            let kept = (own[0] * input.len() as f64).ceil() as usize;
            let magnitude = |i: &usize| {
                let x = input[*i].abs();
                if x.is_nan() {
                    f64::INFINITY
                } else {
                    f64::from(x.min(f32::MAX)) * (1.0 + f64::from(u8::from(x == f32::INFINITY)))
                }
            };
            let mut order: Vec<usize> = (0..input.len()).collect();
            // Stable: of equal elements the first stays before the others.
            order.sort_by(|a, b| magnitude(b).total_cmp(&magnitude(a)));
            let mut out = vec![0.0; input.len()];
            order[..kept].iter().for_each(|&i| out[i] = input[i]);
            Some(out)
        }
        _ => None,
    }
}

#[test]
fn what_arrives_is_what_the_documents_say_in_every_build() {
    for codec in codecs() {
        for input in SIZES.iter().flat_map(|&count| arrays(count)) {
            let expected: Option<Vec<f32>> = input
                .chunks(BLOCK)
                .map(|block| model(&codec, block))
                .collect::<Option<Vec<_>>>()
                .map(|blocks| blocks.concat());
            let bytes = encoded(&codec, Isa::Scalar, ORIGIN, &input);
            let out = decoded(&codec, Isa::Scalar, ORIGIN, &bytes, input.len());
            let case = format!("{} {} of {}", codec.name(), codec.params(), input.len());
            if let Some(expected) = expected {
                assert_same(&out, &expected, &case);
            }
            for isa in isas() {
                assert!(encoded(&codec, isa, ORIGIN, &input) == bytes, "{case} {}", isa.name());
                assert_same(&decoded(&codec, isa, ORIGIN, &bytes, input.len()), &out, &case);
            }
        }
    }
}

#[test]
fn bits_lie_where_mxnet_has_them() {
    let t = 0.5;
    // Captured from the wire of MXNet 1.9.1.
    let signs = "+-0+-0+-0000++++----+".chars().map(|sign| match sign {
        '+' => t,
        '-' => -t,
        _ => 0.0,
    });
    let signs: Vec<f32> = signs.collect();
    let bytes = encoded(&codec("2bit", ""), Isa::Scalar, ORIGIN, &signs);
    assert_eq!(bytes, [0xE3, 0x8E, 0x00, 0xFF, 0xAA, 0xC0, 0x00, 0x00]);
    let bytes = encoded(&codec("2bit", ""), Isa::Scalar, ORIGIN, &[f32::NAN, 0.0, t, -f32::NAN]);
    assert_eq!(bytes, [0b0100_1101, 0, 0, 0]);
    let mut ups = [0.0; 33];
    [0, 3, 8, 15, 32].iter().for_each(|&up: &usize| ups[up] = 1.0);
    let bytes = encoded(&codec("1bit", ""), Isa::Scalar, ORIGIN, &ups);
    assert_eq!(bytes, [0b1001_0000, 0b1000_0001, 0, 0, 0b1000_0000, 0, 0, 0]);
}

#[test]
fn the_other_layouts_are_little_endian() {
    let int8 = encoded(&codec("int8", ""), Isa::Scalar, ORIGIN, &[127.0, -2.0, f32::NAN, 0.5, 1.5]);
    assert_eq!(int8, [0, 0, 0x80, 0x3F, 127, 0xFE, 0x80, 0, 2]);
    let half = encoded(&codec("fp16", ""), Isa::Scalar, ORIGIN, &[1.0, -2.0]);
    assert_eq!(half, [0x00, 0x3C, 0x00, 0xC0]);
    let top = encoded(&codec("topk", "ratio=0.5"), Isa::Scalar, ORIGIN, &[1.0, -3.0, 2.0, 3.0]);
    assert_eq!(top, [1, 0, 0, 0, 0x40, 0xC0, 3, 0, 0, 0, 0x40, 0x40]);
}

#[test]
fn cutting_between_blocks_changes_nothing() {
    for codec in codecs() {
        let input = numbers(&mut Random::new(9), 3 * BLOCK + 77, 100);
        let whole = encoded(&codec, Isa::Scalar, ORIGIN, &input);
        let mut pieces = Vec::new();
        for (at, piece) in
            [(0, &input[..BLOCK]), (1, &input[BLOCK..3 * BLOCK]), (3, &input[3 * BLOCK..])]
        {
            let origin = Origin { block: ORIGIN.block + at, ..ORIGIN };
            let bytes = encoded(&codec, Isa::Scalar, origin, piece);
            assert_eq!(bytes.len(), codec.bytes(piece.len()));
            let out = decoded(&codec, Isa::Scalar, origin, &bytes, piece.len());
            let all = decoded(&codec, Isa::Scalar, ORIGIN, &whole, input.len());
            assert_same(&out, &all[at as usize * BLOCK..][..piece.len()], codec.name());
            pieces.extend(bytes);
        }
        assert!(pieces == whole, "{}", codec.name());
    }
}

#[test]
fn bytes_of_strangers_are_refused_or_decoded_and_never_trusted() {
    let mut random = Random::new(11);
    for codec in codecs() {
        for count in [1, 5, 40, 2048, 2060] {
            let mut out = vec![0.0; count];
            for _ in 0..100 {
                let bytes: Vec<u8> = (0..codec.bytes(count)).map(|_| random.next() as u8).collect();
                let _ = codec.decode(Isa::Scalar, ORIGIN, &bytes, &mut out);
            }
            for wrong in [0, codec.bytes(count) - 1, codec.bytes(count) + 1] {
                let error = codec.decode(Isa::Scalar, ORIGIN, &vec![0; wrong], &mut out);
                let text = error.unwrap_err().message().to_owned();
                assert!(text.contains(&format!("{wrong} bytes; {count} elements take")), "{text}");
            }
        }
    }
    let refused = |codec: &Codec, bytes: &[u8], count: usize| {
        codec.decode(Isa::Scalar, ORIGIN, bytes, &mut vec![0.0; count]).unwrap_err().to_string()
    };
    let top = codec("topk", "ratio=0.5");
    for index in [4, 0xFFFF, 0] {
        let mut bytes = [0u8; 12];
        bytes[6..8].copy_from_slice(&u16::to_le_bytes(index));
        assert!(refused(&top, &bytes, 4).contains(&format!("block 5 has the index {index}")));
    }
    for scale in [f32::NAN, -1.0] {
        let bytes = [&scale.to_le_bytes()[..], &[1, 2]].concat();
        assert!(refused(&codec("int8", ""), &bytes, 2).contains("has the scale"));
    }
}

/// One push through a codec: the decoded values.
fn send(codec: &Codec, origin: Origin, value: &[f32], residual: Option<&mut [f32]>) -> Vec<f32> {
    let (mut bytes, mut sent) = (vec![0; codec.bytes(value.len())], vec![0.0; value.len()]);
    codec.send(Isa::Scalar, origin, value, residual, &mut bytes, &mut sent);
    sent
}

#[test]
fn what_has_arrived_and_what_is_left_are_what_was_pushed() {
    const COUNT: usize = 500;
    for codec in codecs().iter().filter(|codec| codec.feedback) {
        let (mut residual, mut random) = (vec![0.0; COUNT], Random::new(13));
        let (mut pushed, mut arrived) = (vec![0.0f64; COUNT], vec![0.0f64; COUNT]);
        let (mut most, rounds) = (0.0f64, 40);
        for round in 0..rounds {
            let value = numbers(&mut random, COUNT, u64::MAX);
            let sent = send(codec, Origin { round, ..ORIGIN }, &value, Some(&mut residual));
            for i in 0..COUNT {
                pushed[i] += f64::from(value[i]);
                arrived[i] += f64::from(sent[i]);
                most = most.max(f64::from(residual[i].abs() + sent[i].abs()));
            }
        }
        // Two roundings of f32 in each round.
        let tolerance = f64::from(f32::EPSILON) * most * rounds as f64;
        for i in 0..COUNT {
            let distance = (arrived[i] + f64::from(residual[i]) - pushed[i]).abs();
            assert!(distance <= tolerance, "{} element {i}: {distance}", codec.name());
        }
    }
}

#[test]
fn infinities_and_nan_arrive_where_there_is_room_and_leave_no_trace() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let value = [1.0, inf, -inf, nan];
    for (name, params, arrived, left) in [
        ("1bit", "", [1.0, 1.0, -1.0, -1.0], [0.0, inf, -inf, nan]),
        ("2bit", "", [0.5, 0.5, -0.5, nan], [0.5, inf, -inf, 0.0]),
        ("fp16", "feedback=true", [1.0, inf, -inf, nan], [0.0; 4]),
        ("bf16", "feedback=true", [1.0, inf, -inf, nan], [0.0; 4]),
        ("int8", "feedback=true", [0.0, inf, -inf, nan], [1.0, 0.0, 0.0, 0.0]),
        ("topk", "ratio=0.75", [0.0, inf, -inf, nan], [1.0, 0.0, 0.0, 0.0]),
        ("topk", "ratio=0.25", [0.0, 0.0, 0.0, nan], [1.0, inf, -inf, 0.0]),
        ("randomk", "ratio=1", [1.0, inf, -inf, nan], [0.0; 4]),
    ] {
        let mut residual = [0.0; 4];
        let sent = send(&codec(name, params), ORIGIN, &value, Some(&mut residual));
        assert_same(&sent, &arrived, name);
        assert_same(&residual, &left, name);
    }
}

#[test]
fn random_places_follow_from_where_a_block_comes_from() {
    let of = |seed: u64, origin: Origin| {
        let codec = codec("randomk", &format!("ratio=0.1,seed={seed}"));
        let ones = vec![1.0; BLOCK];
        let bytes = encoded(&codec, Isa::Scalar, origin, &ones);
        decoded(&codec, Isa::Scalar, origin, &bytes, BLOCK)
    };
    let first = of(1, ORIGIN);
    assert_eq!(first.iter().filter(|x| **x == 1.0).count(), 205);
    assert!(of(1, ORIGIN) == first);
    for other in [
        of(2, ORIGIN),
        of(1, Origin { key: 8, ..ORIGIN }),
        of(1, Origin { rank: 2, ..ORIGIN }),
        of(1, Origin { round: 4, ..ORIGIN }),
        of(1, Origin { block: 6, ..ORIGIN }),
    ] {
        let common = other.iter().zip(&first).filter(|(a, b)| **a == 1.0 && **b == 1.0).count();
        // 20.5 are expected, with a deviation of 4.1.
        assert!(common < 45, "{common} in common");
    }
}

#[test]
fn random_places_are_equally_likely() {
    const ROUNDS: u64 = 2000;
    const COUNT: usize = 100;
    let codec = codec("randomk", "ratio=0.25");
    let mut hits = [0u32; COUNT];
    for round in 0..ROUNDS {
        let origin = Origin { round, ..ORIGIN };
        let bytes = encoded(&codec, Isa::Scalar, origin, &[1.0; COUNT]);
        let out = decoded(&codec, Isa::Scalar, origin, &bytes, COUNT);
        hits.iter_mut().zip(out).for_each(|(hits, it)| *hits += u32::from(it == 1.0));
    }
    // 500 each, with a deviation of 19.4.
    assert!(hits.iter().all(|hits| (390..=610).contains(hits)), "{hits:?}");
}

#[test]
fn as_many_are_kept_as_the_ratio_says() {
    for (ratio, count, kept) in
        [("0.01", 2048, 21), ("0.01", 1, 1), ("0.5", 3, 2), ("1", 2048, 2048), ("1e-300", 2048, 1)]
    {
        assert_eq!(codec("topk", &format!("ratio={ratio}")).bytes(count), 6 * kept);
        assert_eq!(codec("randomk", &format!("ratio={ratio}")).bytes(count), 4 * kept);
    }
    assert_eq!(codec("topk", "ratio=0.01").bytes(3 * 2048 + 100), 6 * (3 * 21 + 1));
}

#[test]
fn residuals_begin_at_zero_and_go_with_their_codec() {
    let (one, other) = (codec("2bit", ""), codec("2bit", ""));
    let mut kept = None;
    let prepare = |codec: &Codec, kept: &mut Option<Box<Residuals>>, values: usize| {
        let residuals = Residuals::prepare(codec, kept, values, 3, std::ptr::null()).unwrap();
        let mut whole = Vec::new();
        for slot in 0.. {
            let Some(mut array) = residuals.array(slot) else { break };
            whole.push(array.slice::<f32>(&(0..3)).to_vec());
            array.slice_mut::<f32>(&(0..3)).fill(1.0);
        }
        residuals.end_round();
        (whole, residuals.round())
    };
    assert_eq!(prepare(&one, &mut kept, 1), (vec![vec![0.0; 3]], 1));
    assert_eq!(prepare(&one, &mut kept, 2), (vec![vec![1.0; 3], vec![0.0; 3]], 2));
    assert_eq!(prepare(&one, &mut kept, 1), (vec![vec![1.0; 3], vec![1.0; 3]], 3));
    assert_eq!(prepare(&other, &mut kept, 1), (vec![vec![0.0; 3]], 1));
    assert_eq!(prepare(&codec("fp16", ""), &mut kept, 2), (vec![], 1));
}

#[test]
fn names_and_options_are_checked() {
    assert!(Codec::new("None", " ").unwrap().is_none());
    assert_eq!(codec("TopK", " ratio = 0.5 ").params(), "ratio=0.5,feedback=true");
    assert_eq!(codec("2bit", "").params(), "threshold=0.5");
    for (name, params, text) in [
        ("2bits", "", "did you mean 2bit"),
        ("zstd-like", "", "the codecs are none, 1bit, 2bit, fp16, bf16, int8, topk, randomk"),
        ("none", "threshold=1", "codec none: there is no option \"threshold\"; there are none"),
        ("2bit", "threshold=0", "codec 2bit: threshold is 0; it must be a number above 0"),
        ("1bit", "feedback=false", "codec 1bit: feedback is always on with this codec"),
        ("topk", "ratoi=1", "did you mean ratio?"),
        ("randomk", "ratio=2", "ratio is 2; it must be a number above 0 and up to 1"),
        ("int8", "feedback=maybe", "it must be true (1) or false (0)"),
    ] {
        let error = Codec::new(name, params).map(|_| ()).unwrap_err();
        assert!(error.message().contains(text), "{error}");
    }
}

#[test]
fn every_codec_takes_f32_and_lets_integers_pass() {
    for kind in KINDS {
        let codec = codec(kind.name, "");
        let half = matches!(kind.name, "fp16" | "bf16");
        for &dtype in DType::ALL {
            let fits = match dtype {
                DType::F64 => half,
                DType::F16 | DType::BF16 => false,
                _ => true,
            };
            assert_eq!(codec.check(dtype).is_ok(), fits, "{} {}", kind.name, dtype.name());
        }
    }
}
