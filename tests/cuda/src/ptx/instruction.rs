//! The compact form of an instruction.

/// What the bits of an operand mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Bits,
    Unsigned,
    Signed,
    Float,
    Predicate,
}

/// The type suffix of an instruction, such as `.s32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Type {
    pub(super) class: Class,
    pub(super) bytes: u32,
}

impl Type {
    pub(super) const PREDICATE: Self = Self { class: Class::Predicate, bytes: 1 };
    pub(super) const U32: Self = Self { class: Class::Unsigned, bytes: 4 };
    pub(super) const U64: Self = Self { class: Class::Unsigned, bytes: 8 };
    pub(super) const F32: Self = Self { class: Class::Float, bytes: 4 };
    pub(super) const F64: Self = Self { class: Class::Float, bytes: 8 };

    /// The type of a suffix without its dot. None for types of 16-bit floats, vectors and the like.
    pub(super) fn of(suffix: &str) -> Option<Self> {
        if suffix == "pred" {
            return Some(Self::PREDICATE);
        }
        let class = match suffix.as_bytes().first()? {
            b'b' => Class::Bits,
            b'u' => Class::Unsigned,
            b's' => Class::Signed,
            b'f' => Class::Float,
            _ => return None,
        };
        let bytes = match &suffix[1..] {
            "8" => 1,
            "16" => 2,
            "32" => 4,
            "64" => 8,
            _ => return None,
        };
        (class != Class::Float || bytes >= 4).then_some(Self { class, bytes })
    }

    pub(super) fn bits(self) -> u32 {
        8 * self.bytes
    }

    pub(super) fn is_integer(self) -> bool {
        matches!(self.class, Class::Unsigned | Class::Signed)
    }

    /// The low bits of a value.
    pub(super) fn trim(self, value: u64) -> u64 {
        value & (u64::MAX >> (64 - self.bits()))
    }

    /// The low bits of a value as a number, sign-extended if the type is signed.
    pub(super) fn number(self, value: u64) -> i64 {
        let unused = 64 - self.bits();
        let shifted = value << unused;
        match self.class {
            Class::Signed => shifted.cast_signed() >> unused,
            _ => (shifted >> unused).cast_signed(),
        }
    }
}

/// Arithmetic on integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Integer {
    Add,
    Sub,
    MulLow,
    MulHigh,
    MulWide,
    MadLow,
    MadHigh,
    MadWide,
    Div,
    Rem,
    Min,
    Max,
    Abs,
    Neg,
}

/// Operations on bits; on predicates the first four.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bitwise {
    And,
    Or,
    Xor,
    Not,
    ShiftLeft,
    ShiftRight,
    FunnelLeftWrap,
    FunnelLeftClamp,
    FunnelRightWrap,
    FunnelRightClamp,
    Extract,
    Permute,
    CountOnes,
    LeadingZeros,
    Reverse,
}

/// Arithmetic on floats, rounded to nearest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Float {
    Add,
    Sub,
    Mul,
    Div,
    Sqrt,
    Min,
    Max,
    Abs,
    Neg,
}

/// How `setp` compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Relation {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    /// Neither is a NaN.
    Ordered,
    /// One is a NaN.
    Unordered,
}

/// A relation, and whether it holds for NaNs (`equ`, `neu`, `ltu` ...).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Comparison {
    pub(super) relation: Relation,
    pub(super) or_unordered: bool,
}

/// To which integer a float is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rounding {
    /// The destination is a float, to whose nearest value the source is rounded, if it must be.
    Nearest,
    /// `.rni`: ties to even.
    ToEven,
    /// `.rzi`: towards zero.
    ToZero,
    /// `.rmi`: towards negative infinity.
    Down,
    /// `.rpi`: towards positive infinity.
    Up,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Move(Type),
    /// Registers of a vector, the lowest first, become one number.
    Pack {
        part: Type,
        vector: u32,
        count: u32,
    },
    /// One number becomes the registers of a vector.
    Unpack {
        part: Type,
        vector: u32,
        count: u32,
    },
    Integer(Integer, Type),
    Bitwise(Bitwise, Type),
    Float32(Float),
    Float64(Float),
    Compare(Comparison, Type),
    Select,
    /// `register`: the destination, to whose width an integer is extended.
    Convert {
        from: Type,
        to: Type,
        register: Type,
        rounding: Rounding,
    },
    /// Of one value; the register may be wider.
    Load {
        kind: Type,
        register: Type,
    },
    Store(Type),
    LoadVector {
        kind: Type,
        register: Type,
        vector: u32,
        count: u32,
    },
    StoreVector {
        kind: Type,
        vector: u32,
        count: u32,
    },
    /// To the instruction of this number.
    Branch(u32),
    Return,
}

/// An operation with the slots of its operands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Instruction {
    pub(super) operation: Operation,
    /// A slot; the instruction is skipped if it holds `skipped_if`.
    pub(super) guard: u32,
    pub(super) skipped_if: u64,
    pub(super) to: u32,
    pub(super) from: [u32; 3],
    /// Added to the address in `from[0]`.
    pub(super) offset: i64,
    pub(super) line: u32,
}
