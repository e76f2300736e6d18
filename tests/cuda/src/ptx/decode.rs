//! Forms of instruction: from a mnemonic and its operands to an operation.

use super::instruction::{
    Bitwise, Class, Comparison, Float, Instruction, Integer, Operation, Relation, Rounding, Type,
};
use super::names::{ALWAYS, Names};

type Result<T> = std::result::Result<T, String>;

pub(super) fn without_operands(operation: Operation) -> Instruction {
    let (from, offset) = ([ALWAYS; 3], 0);
    Instruction { operation, guard: ALWAYS, skipped_if: 0, to: ALWAYS, from, offset, line: 0 }
}

/// The operands of one instruction.
struct Operands<'a> {
    names: &'a mut Names,
    texts: &'a [&'a str],
}

pub(super) fn decode(mnemonic: &str, texts: &[&str], names: &mut Names) -> Result<Instruction> {
    let parts: Vec<&str> = mnemonic.split('.').collect();
    let unknown = || format!("unknown instruction {mnemonic}");
    let kind = Type::of(parts[parts.len() - 1]);
    let mut operands = Operands { names, texts };
    match (parts[0], &parts[1..], kind) {
        ("ret" | "exit", [], _) => Ok(without_operands(Operation::Return)),
        ("cvta", ["to", "global", "u64"] | ["global", "u64"], _) => {
            operands.plain(Operation::Move(Type::U64), Type::U64, &[Type::U64])
        }
        ("mov", [_], Some(kind)) => operands.mov(kind),
        ("ld", ["param", _], Some(kind)) => operands.load_parameter(kind),
        ("ld", [modifiers @ .., _], Some(kind)) => {
            operands.load(kind, vector_length(modifiers).ok_or_else(unknown)?)
        }
        ("st", [modifiers @ .., _], Some(kind)) => {
            operands.store(kind, vector_length(modifiers).ok_or_else(unknown)?)
        }
        ("cvt", modifiers, Some(from)) => operands.convert(modifiers, from),
        ("setp", [relation, _], Some(kind)) => {
            let comparison = comparison(relation, kind).ok_or_else(unknown)?;
            operands.plain(Operation::Compare(comparison, kind), Type::PREDICATE, &[kind; 2])
        }
        ("selp", [_], Some(kind)) if kind.bytes >= 2 => {
            operands.plain(Operation::Select, kind, &[kind, kind, Type::PREDICATE])
        }
        (name, modifiers, Some(kind)) => {
            if let Some((operation, count)) = float(name, modifiers, kind) {
                operands.plain(operation, kind, &[kind; 2][..count])
            } else if let Some((operation, count)) = integer(name, modifiers, kind) {
                operands.integer(operation, kind, count)
            } else {
                let (operation, from) = bitwise(name, modifiers, kind).ok_or_else(unknown)?;
                let counts = matches!(operation, Bitwise::CountOnes | Bitwise::LeadingZeros);
                let to = if counts { Type::U32 } else { kind };
                operands.plain(Operation::Bitwise(operation, kind), to, &from)
            }
        }
        _ => Err(unknown()),
    }
}

/// Modifiers of an access to global memory: caches (which change no value) and the length of a vector.
fn vector_length(modifiers: &[&str]) -> Option<u32> {
    let (space, rest) = modifiers.split_first()?;
    let mut count = 1;
    for modifier in rest {
        match *modifier {
            "v2" => count = 2,
            "v4" => count = 4,
            "nc" | "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt" => {}
            _ => return None,
        }
    }
    (*space == "global").then_some(count)
}

fn comparison(name: &str, kind: Type) -> Option<Comparison> {
    let is_float = kind.class == Class::Float;
    let plain = |name: &str| {
        Some(match name {
            "eq" => Relation::Equal,
            "ne" => Relation::NotEqual,
            "lt" => Relation::Less,
            "le" => Relation::LessOrEqual,
            "gt" => Relation::Greater,
            "ge" => Relation::GreaterOrEqual,
            "num" if is_float => Relation::Ordered,
            "nan" if is_float => Relation::Unordered,
            _ => return None,
        })
    };
    if kind.class == Class::Bits && !matches!(name, "eq" | "ne") || kind.bytes < 2 {
        return None;
    }
    if let Some(relation) = plain(name) {
        return Some(Comparison { relation, or_unordered: false });
    }
    let relation = name.strip_suffix('u').filter(|it| is_float && it.len() == 2).and_then(plain)?;
    Some(Comparison { relation, or_unordered: true })
}

/// Operations on floats, with their number of sources.
fn float(name: &str, modifiers: &[&str], kind: Type) -> Option<(Operation, usize)> {
    let (operation, count) = match (name, modifiers) {
        ("add", ["rn", _]) => (Float::Add, 2),
        ("sub", ["rn", _]) => (Float::Sub, 2),
        ("mul", ["rn", _]) => (Float::Mul, 2),
        ("div", ["rn", _]) => (Float::Div, 2),
        ("sqrt", ["rn", _]) => (Float::Sqrt, 1),
        ("min", [_]) => (Float::Min, 2),
        ("max", [_]) => (Float::Max, 2),
        ("abs", [_]) => (Float::Abs, 1),
        ("neg", [_]) => (Float::Neg, 1),
        _ => return None,
    };
    match kind {
        Type::F32 => Some((Operation::Float32(operation), count)),
        Type::F64 => Some((Operation::Float64(operation), count)),
        _ => None,
    }
}

/// Operations on integers, with their number of sources.
fn integer(name: &str, modifiers: &[&str], kind: Type) -> Option<(Integer, usize)> {
    let found = match (name, modifiers) {
        ("add", [_]) => (Integer::Add, 2),
        ("sub", [_]) => (Integer::Sub, 2),
        ("mul", ["lo", _]) => (Integer::MulLow, 2),
        ("mul", ["hi", _]) => (Integer::MulHigh, 2),
        ("mul", ["wide", _]) if kind.bytes < 8 => (Integer::MulWide, 2),
        ("mad", ["lo", _]) => (Integer::MadLow, 3),
        ("mad", ["hi", _]) => (Integer::MadHigh, 3),
        ("mad", ["wide", _]) if kind.bytes < 8 => (Integer::MadWide, 3),
        ("div", [_]) => (Integer::Div, 2),
        ("rem", [_]) => (Integer::Rem, 2),
        ("min", [_]) => (Integer::Min, 2),
        ("max", [_]) => (Integer::Max, 2),
        ("abs", [_]) if kind.class == Class::Signed => (Integer::Abs, 1),
        ("neg", [_]) if kind.class == Class::Signed => (Integer::Neg, 1),
        _ => return None,
    };
    (kind.is_integer() && kind.bytes >= 2).then_some(found)
}

/// Operations on bits, with the types of their sources.
fn bitwise(name: &str, modifiers: &[&str], kind: Type) -> Option<(Bitwise, Vec<Type>)> {
    let (is_bits, is_32) = (kind.class == Class::Bits, kind.bytes == 4);
    let is_logical = (is_bits && kind.bytes >= 2) || kind.class == Class::Predicate;
    let is_word = is_bits && kind.bytes >= 4;
    let funnel = |operation| (is_bits && is_32).then(|| (operation, vec![kind, kind, Type::U32]));
    let shift = vec![kind, Type::U32];
    match (name, modifiers) {
        ("and", [_]) if is_logical => Some((Bitwise::And, vec![kind; 2])),
        ("or", [_]) if is_logical => Some((Bitwise::Or, vec![kind; 2])),
        ("xor", [_]) if is_logical => Some((Bitwise::Xor, vec![kind; 2])),
        ("not", [_]) if is_logical => Some((Bitwise::Not, vec![kind])),
        ("shl", [_]) if is_bits && kind.bytes >= 2 => Some((Bitwise::ShiftLeft, shift)),
        ("shr", [_]) if (is_bits || kind.is_integer()) && kind.bytes >= 2 => {
            Some((Bitwise::ShiftRight, shift))
        }
        ("shf", ["l", "wrap", _]) => funnel(Bitwise::FunnelLeftWrap),
        ("shf", ["l", "clamp", _]) => funnel(Bitwise::FunnelLeftClamp),
        ("shf", ["r", "wrap", _]) => funnel(Bitwise::FunnelRightWrap),
        ("shf", ["r", "clamp", _]) => funnel(Bitwise::FunnelRightClamp),
        ("bfe", [_]) if kind.is_integer() && kind.bytes >= 4 => {
            Some((Bitwise::Extract, vec![kind, Type::U32, Type::U32]))
        }
        ("prmt", [_]) if is_bits && is_32 => Some((Bitwise::Permute, vec![kind; 3])),
        ("popc", [_]) if is_word => Some((Bitwise::CountOnes, vec![kind])),
        ("clz", [_]) if is_word => Some((Bitwise::LeadingZeros, vec![kind])),
        ("brev", [_]) if is_word => Some((Bitwise::Reverse, vec![kind])),
        _ => None,
    }
}

impl Operands<'_> {
    fn expect(&self, count: usize) -> Result<()> {
        let has = self.texts.len();
        (has == count).then_some(()).ok_or_else(|| format!("{has} operands instead of {count}"))
    }

    /// One register is written, the others are read.
    fn plain(&mut self, operation: Operation, to: Type, from: &[Type]) -> Result<Instruction> {
        self.expect(1 + from.len())?;
        let mut instruction = without_operands(operation);
        for (index, kind) in from.iter().enumerate() {
            instruction.from[index] = self.names.source(self.texts[1 + index], *kind, false)?;
        }
        instruction.to = self.names.typed_register(self.texts[0], to, false)?.0;
        Ok(instruction)
    }

    fn integer(&mut self, operation: Integer, kind: Type, count: usize) -> Result<Instruction> {
        let wide = match operation {
            Integer::MulWide | Integer::MadWide => Type { bytes: 2 * kind.bytes, ..kind },
            _ => kind,
        };
        self.plain(Operation::Integer(operation, kind), wide, &[kind, kind, wide][..count])
    }

    fn mov(&mut self, kind: Type) -> Result<Instruction> {
        self.expect(2)?;
        let is_vector = |text: &str| text.starts_with('{');
        let part = |texts: &[&str], index: usize| -> Result<Type> {
            let count = texts[index].split(',').count() as u32;
            let part = Type { class: Class::Bits, bytes: kind.bytes / count };
            let is_whole = kind.class == Class::Bits && part.bytes * count == kind.bytes;
            (is_whole && part.bytes >= 2).then_some(part).ok_or_else(|| "unknown vector".to_owned())
        };
        if is_vector(self.texts[0]) {
            let part = part(self.texts, 0)?;
            let (vector, count, register) = self.names.vector(self.texts[0], part, true)?;
            let is_exact = register.bytes == part.bytes;
            let mut instruction = without_operands(Operation::Unpack { part, vector, count });
            instruction.from[0] = self.names.source(self.texts[1], kind, false)?;
            return is_exact.then_some(instruction).ok_or_else(|| "wider registers".to_owned());
        }
        if is_vector(self.texts[1]) {
            let part = part(self.texts, 1)?;
            let (vector, count, _) = self.names.vector(self.texts[1], part, false)?;
            let mut instruction = without_operands(Operation::Pack { part, vector, count });
            instruction.to = self.names.typed_register(self.texts[0], kind, false)?.0;
            return Ok(instruction);
        }
        self.plain(Operation::Move(kind), kind, &[kind])
    }

    fn load_parameter(&mut self, kind: Type) -> Result<Instruction> {
        self.expect(2)?;
        let (to, register) = self.names.typed_register(self.texts[0], kind, true)?;
        let rounding = Rounding::Nearest;
        let mut instruction = without_operands(if kind.class == Class::Float {
            Operation::Move(kind)
        } else {
            Operation::Convert { from: kind, to: kind, register, rounding }
        });
        instruction.to = to;
        instruction.from[0] = self.names.parameter(self.texts[1], kind)?;
        Ok(instruction)
    }

    fn load(&mut self, kind: Type, count: u32) -> Result<Instruction> {
        self.expect(2)?;
        let (to, operation) = if count == 1 {
            let (to, register) = self.names.typed_register(self.texts[0], kind, true)?;
            (to, Operation::Load { kind, register })
        } else {
            let (vector, length, register) = self.names.vector(self.texts[0], kind, true)?;
            if length != count || kind.bytes * count > 16 {
                return Err("wrong length of the vector".into());
            }
            (ALWAYS, Operation::LoadVector { kind, register, vector, count })
        };
        let mut instruction = without_operands(operation);
        instruction.to = to;
        (instruction.from[0], instruction.offset) = self.names.address(self.texts[1])?;
        Ok(instruction)
    }

    fn store(&mut self, kind: Type, count: u32) -> Result<Instruction> {
        self.expect(2)?;
        let (value, operation) = if count == 1 {
            (self.names.source(self.texts[1], kind, true)?, Operation::Store(kind))
        } else {
            let (vector, length, _) = self.names.vector(self.texts[1], kind, false)?;
            if length != count || kind.bytes * count > 16 {
                return Err("wrong length of the vector".into());
            }
            (ALWAYS, Operation::StoreVector { kind, vector, count })
        };
        let mut instruction = without_operands(operation);
        (instruction.from[0], instruction.offset) = self.names.address(self.texts[0])?;
        instruction.from[1] = value;
        Ok(instruction)
    }

    fn convert(&mut self, modifiers: &[&str], from: Type) -> Result<Instruction> {
        self.expect(2)?;
        let unknown = || format!("unknown conversion {modifiers:?}");
        let (rounding, to) = match modifiers {
            [to, _] => ("", to),
            [rounding, to, _] => (*rounding, to),
            _ => return Err(unknown()),
        };
        let to = Type::of(to).ok_or_else(unknown)?;
        let (of_float, to_float) = (from.class == Class::Float, to.class == Class::Float);
        let are_numbers = (of_float || from.is_integer()) && (to_float || to.is_integer());
        let narrows = !of_float || from.bytes > to.bytes;
        let rounding = match (rounding, of_float, to_float) {
            ("", false, false) => Rounding::Nearest,
            ("", true, true) if from.bytes <= to.bytes => Rounding::Nearest,
            ("rn", _, true) if narrows => Rounding::Nearest,
            ("rni", true, _) if !to_float || from == to => Rounding::ToEven,
            ("rzi", true, _) if !to_float || from == to => Rounding::ToZero,
            ("rmi", true, _) if !to_float || from == to => Rounding::Down,
            ("rpi", true, _) if !to_float || from == to => Rounding::Up,
            _ => return Err(unknown()),
        };
        let may_be_wider = !to_float;
        let source = self.names.source(self.texts[1], from, !of_float)?;
        let (slot, register) = self.names.typed_register(self.texts[0], to, may_be_wider)?;
        let operation = Operation::Convert { from, to, register, rounding };
        let mut instruction = without_operands(operation);
        (instruction.to, instruction.from[0]) = (slot, source);
        are_numbers.then_some(instruction).ok_or_else(unknown)
    }
}
