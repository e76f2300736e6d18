//! The parameters of two well-known networks, in the order in which their layers run.

use crate::tensors::Keys;

/// ResNet-50: He et al., "Deep Residual Learning for Image Recognition" (2015), table 1, with
/// batch normalisation after each convolution and a projection where a stage begins (section 3.3,
/// option B). 161 keys, 25.6 million parameters.
pub fn resnet50() -> Keys {
    let mut shapes = Vec::new();
    convolution(&mut shapes, 3, 64, 7);
    let mut input = 64;
    for (blocks, width) in [(3, 64), (4, 128), (6, 256), (3, 512)] {
        for block in 0..blocks {
            convolution(&mut shapes, input, width, 1);
            convolution(&mut shapes, width, width, 3);
            convolution(&mut shapes, width, 4 * width, 1);
            if block == 0 {
                convolution(&mut shapes, input, 4 * width, 1);
            }
            input = 4 * width;
        }
    }
    dense(&mut shapes, input, 1000);
    Keys::of_shapes("ResNet-50", shapes)
}

/// BERT-base, uncased: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers"
/// (2018), section 3 (12 layers, 768 wide) and its published configuration (30,522 word pieces,
/// 512 positions, 2 segments). 199 keys, 109.5 million parameters.
pub fn bert_base() -> Keys {
    const WIDE: i64 = 768;
    let mut shapes = vec![vec![30_522, WIDE], vec![512, WIDE], vec![2, WIDE]];
    normalisation(&mut shapes, WIDE);
    for _ in 0..12 {
        // Query, key, value, and the output of the attention.
        (0..4).for_each(|_| dense(&mut shapes, WIDE, WIDE));
        normalisation(&mut shapes, WIDE);
        dense(&mut shapes, WIDE, 4 * WIDE);
        dense(&mut shapes, 4 * WIDE, WIDE);
        normalisation(&mut shapes, WIDE);
    }
    dense(&mut shapes, WIDE, WIDE);
    Keys::of_shapes("BERT-base", shapes)
}

fn convolution(shapes: &mut Vec<Vec<i64>>, input: i64, output: i64, side: i64) {
    shapes.push(vec![output, input, side, side]);
    normalisation(shapes, output);
}

fn dense(shapes: &mut Vec<Vec<i64>>, input: i64, output: i64) {
    shapes.push(vec![output, input]);
    shapes.push(vec![output]);
}

/// A scale and a shift.
fn normalisation(shapes: &mut Vec<Vec<i64>>, channels: i64) {
    shapes.extend([vec![channels], vec![channels]]);
}
