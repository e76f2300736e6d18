//! Descriptors that one process gives another over a Unix-domain socket, and the user at its other end.
//! Also called: file descriptor passing, `SCM_RIGHTS`, peer credentials.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Room for one descriptor with its header, aligned as a header is.
type Control = [u64; 4];

/// Bytes of one descriptor.
const ONE: libc::c_uint = 4;

const _: () = assert!(size_of::<RawFd>() == ONE as usize);

/// Sends one byte, and with it a descriptor of this process.
pub(crate) fn send_descriptor(socket: impl AsFd, descriptor: impl AsFd) -> io::Result<()> {
    let mut byte = [0_u8];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
    let mut control: Control = [0; 4];
    let message = message(&mut part, &mut control);
    // SAFETY: the control bytes have room for one header with one descriptor behind it.
    unsafe {
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        (*head).cmsg_level = libc::SOL_SOCKET;
        (*head).cmsg_type = libc::SCM_RIGHTS;
        (*head).cmsg_len = message.msg_controllen;
        libc::CMSG_DATA(head).cast::<RawFd>().write_unaligned(descriptor.as_fd().as_raw_fd());
    }
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the message points to memory that outlives the call.
    let sent = unsafe { libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives one byte, and the descriptor that its sender has sent with it. Further ones are closed.
pub(crate) fn receive_descriptor(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut byte = [0_u8];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
    let mut control: Control = [0; 4];
    let mut message = message(&mut part, &mut control);
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the message points to memory that outlives the call.
    let received = unsafe { libc::recvmsg(socket, &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the system has written so many control bytes. A header of this kind with room for a descriptor
    // has one behind it, which is new in this process and has no other owner.
    unsafe {
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        let is_one = !head.is_null()
            && (*head).cmsg_level == libc::SOL_SOCKET
            && (*head).cmsg_type == libc::SCM_RIGHTS
            && (*head).cmsg_len >= libc::CMSG_LEN(ONE) as usize;
        if is_one {
            let descriptor = libc::CMSG_DATA(head).cast::<RawFd>().read_unaligned();
            return Ok(OwnedFd::from_raw_fd(descriptor));
        }
    }
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "no descriptor was sent"))
}

/// A message of one part, with room for exactly one descriptor.
fn message(part: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: plain numbers and pointers, for which zero is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: a calculation. The length without padding: with it, a second descriptor would fit.
    message.msg_controllen = unsafe { libc::CMSG_LEN(ONE) } as usize;
    debug_assert!(message.msg_controllen <= size_of::<Control>());
    message
}

/// Effective user id of the process that has connected, or that listens, at the other end.
pub(crate) fn peer_user(socket: impl AsFd) -> io::Result<u32> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = libc::socklen_t::try_from(size_of::<libc::ucred>()).map_err(io::Error::other)?;
    // SAFETY: room for the value, and its length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(found.uid) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_descriptor_arrives_as_another_one_of_the_same_file() {
        let (left, right) = UnixStream::pair().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        send_descriptor(&left, &writer).unwrap();
        let copy = receive_descriptor(&right).unwrap();
        assert_ne!(copy.as_raw_fd(), writer.as_raw_fd());
        // SAFETY: a call without memory.
        let flags = unsafe { libc::fcntl(copy.as_raw_fd(), libc::F_GETFD) };
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        drop(writer);
        File::from(copy).write_all(b"through it").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through it");
    }

    #[test]
    fn bytes_without_a_descriptor_and_an_end_are_errors() {
        let (mut left, right) = UnixStream::pair().unwrap();
        left.write_all(&[1]).unwrap();
        assert!(receive_descriptor(&right).is_err());
        drop(left);
        assert!(receive_descriptor(&right).is_err());
    }

    #[test]
    fn the_user_at_the_other_end_is_known() {
        let (left, _right) = UnixStream::pair().unwrap();
        assert_eq!(peer_user(&left).unwrap(), crate::sys::user());
    }
}
