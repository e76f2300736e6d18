//! The neural networks of the measurements of P3: sizes and work of their layers, from their architecture.

type Nanos = u64;

/// A layer: arrays that one step of the computation needs together.
pub struct Layer {
    /// Elements of each array.
    pub arrays: Vec<u64>,
    /// Multiplications of one image, in the forward pass.
    pub work: u64,
}

/// A neural network and its speed on one machine.
pub struct Net {
    /// Name in texts.
    pub name: &'static str,
    /// Layers, in the order of the forward pass.
    pub layers: Vec<Layer>,
    /// Images of an iteration.
    batch: u64,
    /// Speed of one machine without communication.
    images_per_second: u64,
}

impl Net {
    /// Nanoseconds of an iteration without communication.
    #[must_use]
    pub fn alone(&self) -> Nanos {
        self.batch * 1_000_000_000 / self.images_per_second
    }

    /// Nanoseconds of a layer in the forward pass: a third of the iteration, shared by work.
    #[must_use]
    pub fn forward(&self, layer: &Layer) -> Nanos {
        let work: u64 = self.layers.iter().map(|layer| layer.work).sum();
        self.alone() / 3 * (layer.work / 1_000) / (work / 1_000)
    }
}

/// Weights and work of a convolution; both sides of its output are `size`.
fn convolution(side: u64, from: u64, to: u64, size: u64) -> (u64, u64) {
    let weights = side * side * from * to;
    (weights, weights * size * size)
}

/// VGG-19: Simonyan and Zisserman, 2015, configuration E, with biases.
#[must_use]
pub fn vgg_19() -> Net {
    let (mut layers, mut from, mut size) = (Vec::new(), 3, 224);
    for (count, to) in [(2, 64), (2, 128), (4, 256), (4, 512), (4, 512)] {
        for _ in 0..count {
            let (weights, work) = convolution(3, from, to, size);
            layers.push(Layer { arrays: vec![weights, to], work });
            from = to;
        }
        size /= 2;
    }
    for (from, to) in [(512 * 7 * 7, 4_096), (4_096, 4_096), (4_096, 1_000)] {
        layers.push(Layer { arrays: vec![from * to, to], work: from * to });
    }
    Net { name: "VGG-19", layers, batch: 32, images_per_second: 34 }
}

/// ResNet-50: He et al., 2016. A convolution and its normalisation, which counts as no work, are one layer.
#[must_use]
pub fn resnet_50() -> Net {
    let mut layers = Vec::new();
    let mut add = |side, from, to, size| {
        let (weights, work) = convolution(side, from, to, size);
        layers.push(Layer { arrays: vec![weights, to, to], work });
    };
    add(7, 3, 64, 112);
    let mut from = 64;
    for (blocks, inner, size) in [(3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7)] {
        for block in 0..blocks {
            let to = inner * 4;
            if block == 0 {
                add(1, from, to, size);
            }
            add(1, from, inner, size);
            add(3, inner, inner, size);
            add(1, inner, to, size);
            from = to;
        }
    }
    layers.push(Layer { arrays: vec![2_048 * 1_000, 1_000], work: 2_048 * 1_000 });
    Net { name: "ResNet-50", layers, batch: 32, images_per_second: 105 }
}

#[cfg(test)]
mod tests {
    use super::{Net, resnet_50, vgg_19};

    fn sums(net: &Net) -> (usize, u64, u64) {
        let arrays = net.layers.iter().map(|layer| layer.arrays.len()).sum();
        let elements = net.layers.iter().flat_map(|layer| &layer.arrays).sum();
        let work: u64 = net.layers.iter().map(|layer| layer.work).sum();
        (arrays, elements, work / 10_000_000)
    }

    #[test]
    fn sizes_and_work_are_the_published_ones() {
        assert_eq!(sums(&vgg_19()), (38, 143_667_240, 1_963));
        assert_eq!(sums(&resnet_50()), (161, 25_557_032, 385));
    }

    #[test]
    fn the_times_of_all_layers_make_up_an_iteration() {
        for net in [vgg_19(), resnet_50()] {
            let forward: u64 = net.layers.iter().map(|layer| net.forward(layer)).sum();
            assert!((forward * 3).abs_diff(net.alone()) < net.alone() / 1_000, "{}", net.name);
        }
    }
}
