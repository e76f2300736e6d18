//! Nodes of both roles in one list.

use std::ops::{Deref, DerefMut};

#[cfg(test)]
use crate::job::Peer;
use crate::job::{Data, Limits, Role, Time};
use crate::machine::Machine;
#[cfg(test)]
use crate::message::Message;
use crate::node::{Node, NodeStart};
use crate::server::Server;
#[cfg(test)]
use crate::stream::CONTROL;
use crate::worker::Worker;

/// A worker or a server.
pub enum AnyNode<D> {
    /// A worker.
    Worker(Box<Node<D, Worker<D>>>),
    /// A server.
    Server(Box<Node<D, Server<D>>>),
}

impl<D: Data> AnyNode<D> {
    /// A worker, or else a server, that joins the job.
    #[must_use]
    pub fn new(role: Role, limits: Limits, start: &NodeStart<'_>, now: Time) -> Self {
        if role == Role::Worker {
            Self::Worker(Box::new(Node::new(limits, start, now)))
        } else {
            Self::Server(Box::new(Node::new(limits, start, now)))
        }
    }

    /// Sends any message, as a process of another implementation might.
    #[cfg(test)]
    pub(crate) fn say(&mut self, to: Peer, message: Message<D>) {
        self.say_at(to, message, CONTROL);
    }

    /// Sends any message, among those of a priority.
    #[cfg(test)]
    pub(crate) fn say_at(&mut self, to: Peer, message: Message<D>, priority: i32) {
        match self {
            Self::Worker(node) => node.say(to, message, priority),
            Self::Server(node) => node.say(to, message, priority),
        }
    }
}

impl<D: Data + 'static> Deref for AnyNode<D> {
    type Target = dyn Machine<D>;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Worker(node) => &**node,
            Self::Server(node) => &**node,
        }
    }
}

impl<D: Data + 'static> DerefMut for AnyNode<D> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Worker(node) => &mut **node,
            Self::Server(node) => &mut **node,
        }
    }
}
