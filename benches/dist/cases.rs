//! What is pushed and pulled.

/// A round of a case: all keys are pushed, then all are pulled.
pub struct Case {
    pub name: &'static str,
    /// Elements of each key, float32.
    pub keys: Vec<usize>,
    /// The optimizer on the server, none if empty.
    pub rule: &'static str,
}

impl Case {
    pub fn elements(&self) -> usize {
        self.keys.iter().sum()
    }

    pub fn bytes(&self) -> usize {
        self.elements() * size_of::<f32>()
    }
}

pub fn all() -> Vec<Case> {
    let case = |name, keys, rule| Case { name, keys, rule };
    vec![
        case("one-1K", vec![1 << 10], ""),
        case("one-64K", vec![1 << 16], ""),
        case("one-1M", vec![1 << 20], ""),
        case("one-16M", vec![16 << 20], ""),
        case("resnet", resnet50(), ""),
        case("many-1000x1K", vec![1 << 10; 1000], ""),
        case("resnet-momentum", resnet50(), "momentum"),
        case("many-1000x1K-momentum", vec![1 << 10; 1000], "momentum"),
    ]
}

/// The sizes of ResNet-50's arrays: He et al., "Deep Residual Learning for Image Recognition" (2015),
/// table 1, with a scale and a shift after each convolution. 161 keys, 25.6 million parameters.
fn resnet50() -> Vec<usize> {
    let mut sizes = Vec::new();
    let mut convolution = |input: usize, output: usize, side: usize| {
        sizes.extend([output * input * side * side, output, output]);
    };
    convolution(3, 64, 7);
    let mut input = 64;
    for (blocks, width) in [(3, 64), (4, 128), (6, 256), (3, 512)] {
        for block in 0..blocks {
            convolution(input, width, 1);
            convolution(width, width, 3);
            convolution(width, 4 * width, 1);
            if block == 0 {
                convolution(input, 4 * width, 1);
            }
            input = 4 * width;
        }
    }
    sizes.extend([input * 1000, 1000]);
    sizes
}
