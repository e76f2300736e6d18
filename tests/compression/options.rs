//! What is said about codecs, options and keys that do not go together.

use kvstore::{DType, ErrorKind, Key, Store, Tensor, bf16, f16};

use super::{CODECS, open, pull};

fn assert_refused(store: &Store, name: &str, params: &str, kind: ErrorKind, text: &str) {
    let error = store.set_compression(name, params).expect_err(params);
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.message().contains(text), "{name} {params:?}: {error}");
    assert!(error.message().starts_with("set_compression: "), "{error}");
}

#[test]
fn slips_get_hints_and_change_nothing() {
    let store = open();
    store.init(1u64, &[0.0f32; 3]).unwrap();
    store.set_compression("2BIT", "threshold=2").unwrap();
    for (name, params, text) in [
        ("2bot", "", "there is no codec \"2bot\"; did you mean 2bit"),
        ("", "", "the codecs are none, 1bit, 2bit, fp16, bf16, int8, topk, randomk"),
        ("2bit", "treshold=1", "did you mean threshold?"),
        ("2bit", "threshold=-1", "codec 2bit: threshold is -1; it must be a number above 0"),
        ("2bit", "threshold=inf", "threshold is inf"),
        ("2bit", "threshold=nan", "threshold is NaN"),
        ("2bit", "threshold=1,threshold=2", "threshold is given twice"),
        ("2bit", "0.5", "\"0.5\" is not of the form name=value"),
        ("2bit", "feedback=true", "feedback is always on with this codec"),
        ("topk", "ratio=0", "ratio is 0; it must be a number above 0 and up to 1"),
        ("topk", "seed=1", "there is no option \"seed\"; the options are ratio, feedback"),
        ("randomk", "seed=-1", "seed is -1; it must be a whole number from 0"),
        ("fp16", "threshold=1", "there is no option \"threshold\"; the options are feedback"),
        ("none", "ratio=1", "there are none"),
    ] {
        assert_refused(&store, name, params, ErrorKind::Option, text);
    }
    store.push(1u64, &[2.0f32, 1.0, -5.0]).unwrap();
    assert_eq!(pull(&store, 1, 3), [2.0, 0.0, -2.0]);
}

/// Initialises key 1 as a value of a dtype.
fn init(store: &Store, dtype: DType) -> kvstore::Result<()> {
    match dtype {
        DType::F64 => store.init(1u64, &[0.5f64]),
        DType::F16 => store.init(1u64, &[f16::ONE]),
        DType::BF16 => store.init(1u64, &[bf16::ONE]),
        DType::I32 => store.init(1u64, &[1i32]),
        _ => store.init(1u64, &[0.5f32]),
    }
}

#[test]
fn dtypes_that_a_codec_cannot_take_are_refused_when_it_is_set_and_at_init() {
    for name in CODECS {
        let half = matches!(*name, "fp16" | "bf16");
        for (dtype, taken) in [
            (DType::F32, true),
            (DType::I32, true),
            (DType::F64, half),
            (DType::F16, false),
            (DType::BF16, false),
        ] {
            let text = format!("key 1 is {}[1]: the codec {name} takes float32", dtype.name());
            let (later, earlier) = (open(), open());
            earlier.set_compression(name, "").unwrap();
            init(&later, dtype).unwrap();
            if taken {
                later.set_compression(name, "").unwrap();
                init(&earlier, dtype).unwrap();
                continue;
            }
            assert_refused(&later, name, "", ErrorKind::DtypeMismatch, &text);
            let error = init(&earlier, dtype).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DtypeMismatch);
            assert!(error.message().starts_with(&format!("init: {text}")), "{error}");
            assert!(earlier.keys().unwrap().is_empty());
            // Nothing is set, and nothing is in the way any more.
            assert!(later.stats().unwrap().contains("\"compression\":\"none\""));
            earlier.set_compression("none", "").unwrap();
            init(&earlier, dtype).unwrap();
        }
    }
}

#[test]
fn a_broadcast_of_what_cannot_be_compressed_is_refused() {
    let store = open();
    store.set_compression("1bit", "").unwrap();
    let (key, value, mut out) = (Key::from(4u64), [1.0f64], [0.0f64]);
    let outs = &mut [(&mut out).into()];
    let error = store.broadcast_list(&[key], &[Tensor::from(&value)], &[key], outs).unwrap_err();
    assert!(error.message().starts_with("broadcast: key 4 is float64[1]: the codec 1bit"));
    assert!(store.keys().unwrap().is_empty());
}

#[test]
fn the_statistics_name_the_codec_and_its_options() {
    let store = open();
    let shown = |text: &str| assert!(store.stats().unwrap().contains(text), "{text}");
    shown("\"compression\":\"none\",\"compression_params\":\"\",");
    store.set_compression("RandomK", "seed=3").unwrap();
    shown(
        "\"compression\":\"randomk\",\"compression_params\":\"ratio=0.01,seed=3,feedback=true\",",
    );
}
