//! A message that has arrived, in whatever memory it is.
#![allow(unsafe_code, reason = "memory that a library of C has written")]

use std::ffi::c_void;
use std::ptr::NonNull;

use super::events::ReceiveOperation;
use super::offer::{HEADER, HeaderFront};
use crate::transport::ReceiveRoom;

/// An active message that has arrived. It goes back to `UcxWorker::release`, unless its payload is in a room.
pub(super) struct Arrival {
    pub(super) header: [u8; HEADER],
    /// The first bytes of its frames.
    pub(super) front: HeaderFront,
    pub(super) data: ArrivalData,
}

pub(super) enum ArrivalData {
    Bytes(Vec<u8>),
    /// Memory of the library, until it is released.
    Kept(*mut c_void, usize),
    /// In the buffer of an operation that is complete.
    Received(NonNull<ReceiveOperation>),
    /// In memory of the inbox, all of whose bytes the library has written.
    InRoom(ReceiveRoom),
}

// SAFETY: memory that belongs to the message until it is released, whatever thread does that.
unsafe impl Send for Arrival {}

impl Arrival {
    /// The data; none if they are in a room.
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.data {
            ArrivalData::Bytes(bytes) => bytes,
            // SAFETY: the library keeps these bytes, which it has written, until they are released.
            ArrivalData::Kept(start, len) => unsafe {
                std::slice::from_raw_parts(start.cast::<u8>(), *len)
            },
            // SAFETY: the operation is complete, and is used again only after the release.
            ArrivalData::Received(operation) => unsafe {
                let operation = operation.as_ref();
                &operation.buffer[..operation.len]
            },
            ArrivalData::InRoom(_) => &[],
        }
    }

    /// The room with the payload of a frame, if it is in one.
    pub(super) fn take_room(&mut self) -> Option<ReceiveRoom> {
        if !matches!(self.data, ArrivalData::InRoom(_)) {
            return None;
        }
        let data = std::mem::replace(&mut self.data, ArrivalData::Bytes(Vec::new()));
        let ArrivalData::InRoom(mut room) = data else { return None };
        // SAFETY: a room is that of a message only after the library has written all of its bytes.
        unsafe { room.filled() };
        Some(room)
    }
}
