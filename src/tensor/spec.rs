//! A key's dtype and shape in so few bytes that they fit beside a pointer to the key.

use super::dtype::DType;
use super::layout;

/// Dimensions that fit.
const MOST_DIMENSIONS: usize = 4;

/// The dtype and shape of a tensor of up to four dimensions and less than 4 GiB, whose dtype is not
/// opaque: pushes of opaque values need checks that quick ones leave out.
#[derive(Clone, Copy)]
pub(crate) struct TensorSpec {
    extents: [u32; MOST_DIMENSIONS],
    bytes: u32,
    dtype: DType,
    ndim: u8,
    /// As [`DType::align`], without a look at a table in memory.
    align: u8,
}

impl TensorSpec {
    /// None if it is no such tensor.
    pub(crate) fn new(dtype: DType, shape: &[i64]) -> Option<Self> {
        if dtype.is_opaque() {
            return None;
        }
        let bytes = layout::count(shape)?.checked_mul(dtype.size())?;
        let mut extents = [0; MOST_DIMENSIONS];
        for (place, &extent) in extents.get_mut(..shape.len())?.iter_mut().zip(shape) {
            *place = u32::try_from(extent).ok()?;
        }
        let (bytes, ndim) = (u32::try_from(bytes).ok()?, u8::try_from(shape.len()).ok()?);
        let align = u8::try_from(dtype.align()).ok()?;
        Some(Self { extents, bytes, dtype, ndim, align })
    }

    #[inline]
    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    #[inline]
    pub(crate) fn align(&self) -> usize {
        self.align.into()
    }

    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes as usize
    }

    #[inline]
    pub(crate) fn extents(&self) -> &[u32] {
        &self.extents[..usize::from(self.ndim)]
    }

    #[inline]
    pub(crate) fn has_shape(&self, shape: &[i64]) -> bool {
        let pairs = || self.extents().iter().zip(shape);
        shape.len() == self.extents().len() && pairs().all(|(&own, &other)| i64::from(own) == other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_is_its_dtype_and_shape_and_nothing_else() {
        let spec = TensorSpec::new(DType::F64, &[2, 0, 1 << 31]).unwrap();
        assert_eq!(
            (spec.dtype(), spec.bytes(), spec.extents()),
            (DType::F64, 0, &[2, 0, 1 << 31][..])
        );
        assert!(spec.has_shape(&[2, 0, 1 << 31]));
        assert!(!spec.has_shape(&[2, 0]) && !spec.has_shape(&[2, 0, (1 << 31) + (1 << 32)]));
        assert_eq!(TensorSpec::new(DType::I8, &[]).unwrap().bytes(), 1);
        assert!(TensorSpec::new(DType::Bool, &[1]).is_none(), "opaque");
        assert!(TensorSpec::new(DType::F32, &[1; 5]).is_none(), "too many dimensions");
        assert!(TensorSpec::new(DType::F32, &[1 << 30]).is_none(), "too many bytes");
        assert!(TensorSpec::new(DType::F32, &[0, 1 << 32]).is_none(), "too large an extent");
    }
}
