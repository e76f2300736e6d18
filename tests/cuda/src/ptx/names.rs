//! The operands of a kernel: registers, parameters, constants, and their slots in the frame.

use std::collections::HashMap;

use super::instruction::{Class, Type};

/// The special registers, in the order of their slots, which begin at 1.
const SPECIAL: [&str; 12] = [
    "%tid.x",
    "%tid.y",
    "%tid.z",
    "%ctaid.x",
    "%ctaid.y",
    "%ctaid.z",
    "%ntid.x",
    "%ntid.y",
    "%ntid.z",
    "%nctaid.x",
    "%nctaid.y",
    "%nctaid.z",
];

/// The slot that is always 1: the guard of instructions without one.
pub(super) const ALWAYS: u32 = 0;
/// The first of three slots each: thread, block, threads of a block, blocks of the grid.
pub(super) const FIRST_SPECIAL: usize = 1;
/// The slot of the first parameter.
pub(super) const FIRST_PARAMETER: usize = FIRST_SPECIAL + SPECIAL.len();

/// Registers declared together.
struct Bank {
    kind: Type,
    /// How many there are, with numbers behind the name; none for a single one without a number.
    count: Option<u32>,
}

/// The table of names while a kernel is parsed.
pub(super) struct Names {
    banks: HashMap<String, Bank>,
    slots: HashMap<String, u32>,
    constants: HashMap<u64, u32>,
    parameters: HashMap<String, (u32, u32)>,
    pub(super) frame: Vec<u64>,
    pub(super) vectors: Vec<[u32; 4]>,
}

type Result<T> = std::result::Result<T, String>;

fn is_type_for_registers(kind: Type) -> bool {
    kind.bytes >= 2 || kind.class == Class::Predicate
}

impl Names {
    pub(super) fn new(parameters: Vec<(String, usize)>) -> Self {
        let mut frame = vec![0; FIRST_PARAMETER + parameters.len()];
        frame[ALWAYS as usize] = 1;
        let slot = |(index, (name, bytes)): (usize, (String, usize))| {
            (name, ((FIRST_PARAMETER + index) as u32, bytes as u32))
        };
        let parameters = parameters.into_iter().enumerate().map(slot).collect();
        Self {
            banks: HashMap::new(),
            slots: HashMap::new(),
            constants: HashMap::new(),
            parameters,
            frame,
            vectors: Vec::new(),
        }
    }

    /// `.reg .b32 %r<5>, %x`
    pub(super) fn declare(&mut self, declaration: &str) -> Result<()> {
        let (kind, names) = declaration.trim().split_once(char::is_whitespace).unwrap_or_default();
        let kind =
            kind.strip_prefix('.').and_then(Type::of).filter(|it| is_type_for_registers(*it));
        let kind = kind.ok_or_else(|| format!("registers of unknown type: {declaration}"))?;
        for name in names.split(',').map(str::trim) {
            let (name, count) = match name.split_once('<') {
                None => (name, None),
                Some((name, count)) => {
                    let count = count.strip_suffix('>').and_then(|count| count.parse().ok());
                    (
                        name,
                        Some(count.ok_or_else(|| format!("number of registers: {declaration}"))?),
                    )
                }
            };
            self.banks.insert(name.to_owned(), Bank { kind, count });
        }
        Ok(())
    }

    fn new_slot(&mut self, value: u64) -> u32 {
        self.frame.push(value);
        (self.frame.len() - 1) as u32
    }

    fn declared(&self, name: &str) -> Option<Type> {
        if let Some(bank) = self.banks.get(name) {
            return bank.count.is_none().then_some(bank.kind);
        }
        let prefix = name.trim_end_matches(|digit: char| digit.is_ascii_digit());
        let bank = self.banks.get(prefix)?;
        let number: u32 = name[prefix.len()..].parse().ok()?;
        (number < bank.count?).then_some(bank.kind)
    }

    /// The slot and the declared type of a register.
    fn register(&mut self, name: &str) -> Result<(u32, Type)> {
        let kind = self.declared(name).ok_or_else(|| format!("undeclared register {name}"))?;
        if let Some(slot) = self.slots.get(name) {
            return Ok((*slot, kind));
        }
        let slot = self.new_slot(0);
        self.slots.insert(name.to_owned(), slot);
        Ok((slot, kind))
    }

    /// A register that an instruction of this type writes or reads. Those that load, store and convert
    /// may have a wider one.
    pub(super) fn typed_register(
        &mut self,
        name: &str,
        kind: Type,
        may_be_wider: bool,
    ) -> Result<(u32, Type)> {
        let (slot, register) = self.register(name)?;
        let are_alike = (register.class == Class::Predicate) == (kind.class == Class::Predicate)
            && (register.bytes == kind.bytes || (may_be_wider && register.bytes > kind.bytes));
        if are_alike {
            Ok((slot, Type { class: kind.class, ..register }))
        } else {
            Err(format!("register {name} does not have the type of the instruction"))
        }
    }

    fn immediate(&mut self, text: &str, kind: Type) -> Result<u32> {
        let value = number(text, kind).ok_or_else(|| format!("unknown operand {text}"))?;
        let is_predicate = kind.class == Class::Predicate;
        let value = if is_predicate { u64::from(value != 0) } else { kind.trim(value) };
        if let Some(slot) = self.constants.get(&value) {
            return Ok(*slot);
        }
        let slot = self.new_slot(value);
        self.constants.insert(value, slot);
        Ok(slot)
    }

    /// An operand that is read: a register, an index of the thread, or a constant.
    pub(super) fn source(&mut self, text: &str, kind: Type, may_be_wider: bool) -> Result<u32> {
        if let Some(index) = SPECIAL.iter().position(|name| *name == text) {
            let is_fitting = kind.bytes == 4 && kind.class != Class::Float;
            return (is_fitting.then_some((FIRST_SPECIAL + index) as u32))
                .ok_or_else(|| format!("{text} has 32 bits"));
        }
        if text.starts_with('%') {
            Ok(self.typed_register(text, kind, may_be_wider)?.0)
        } else {
            self.immediate(text, kind)
        }
    }

    /// `[%rd1+8]`: the slot of the base register, and the offset.
    pub(super) fn address(&mut self, text: &str) -> Result<(u32, i64)> {
        let unknown = || format!("unknown address {text}");
        let inner =
            text.strip_prefix('[').and_then(|it| it.strip_suffix(']')).ok_or_else(unknown)?;
        let (base, offset) = inner.split_once('+').unwrap_or((inner, "0"));
        let offset = offset.trim().parse().map_err(|_| unknown())?;
        Ok((self.typed_register(base.trim(), Type::U64, false)?.0, offset))
    }

    /// `[name]`: the slot of a parameter of this size.
    pub(super) fn parameter(&mut self, text: &str, kind: Type) -> Result<u32> {
        let name = text.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(text);
        match self.parameters.get(name) {
            Some((slot, bytes)) if *bytes == kind.bytes => Ok(*slot),
            Some(_) => Err(format!("{name} is not a parameter of {} bytes", kind.bytes)),
            None => Err(format!("unknown parameter {text}")),
        }
    }

    /// `{%r1, %r2}`: the index of the vector, its length, and the type of its registers.
    pub(super) fn vector(
        &mut self,
        text: &str,
        kind: Type,
        is_written: bool,
    ) -> Result<(u32, u32, Type)> {
        let inner = text.strip_prefix('{').and_then(|it| it.strip_suffix('}'));
        let parts: Vec<&str> = inner
            .ok_or_else(|| format!("{text} is no vector"))?
            .split(',')
            .map(str::trim)
            .collect();
        if !matches!(parts.len(), 2 | 4) {
            return Err(format!("a vector has 2 or 4 parts: {text}"));
        }
        let (mut slots, mut register) = ([0; 4], kind);
        for (slot, part) in slots.iter_mut().zip(&parts) {
            if is_written {
                (*slot, register) = self.typed_register(part, kind, true)?;
            } else {
                *slot = self.source(part, kind, true)?;
            }
        }
        self.vectors.push(slots);
        Ok(((self.vectors.len() - 1) as u32, parts.len() as u32, register))
    }
}

/// A number as it stands in the text: `-5`, `0x10`, `7U`, `0f3F800000` or `0d3FF0000000000000`.
fn number(text: &str, kind: Type) -> Option<u64> {
    let bits = |digits: &str, count: usize| {
        (digits.len() == count).then(|| u64::from_str_radix(digits, 16).ok()).flatten()
    };
    match (text.get(..2), kind) {
        (Some("0f" | "0F"), Type { bytes: 4, .. }) => return bits(&text[2..], 8),
        (Some("0d" | "0D"), Type { bytes: 8, .. }) => return bits(&text[2..], 16),
        _ if kind.class == Class::Float => return None,
        _ => {}
    }
    let (is_negative, digits) = text.strip_prefix('-').map_or((false, text), |it| (true, it));
    let digits = digits.strip_suffix('U').unwrap_or(digits);
    let value = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        // A leading zero means octal digits.
        None if digits.len() > 1 && digits.starts_with('0') => return None,
        None => digits.parse().ok()?,
    };
    Some(if is_negative { value.wrapping_neg() } else { value })
}
