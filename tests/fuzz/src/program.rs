// SPDX-License-Identifier: GPL-2.0-only
//! Programs: lists of operations on the memory of a [`World`](crate::world::World), as libFuzzer's
//! bytes describe them.

use arbitrary::Arbitrary;

/// The operations of one input.
#[derive(Arbitrary, Debug)]
pub struct Program {
    pub operations: Vec<Operation>,
}

#[derive(Arbitrary, Debug)]
pub enum Operation {
    /// `move_pages(2)`
    Move(Move),
    /// `mbind(2)`
    Bind {
        at: Address,
        pages: u8,
        /// Often a valid mode.
        mode: Either<u8, i32>,
        nodes: u8,
        flags: Either<u8, u32>,
    },
    /// `migrate_pages(2)`
    MigrateAll { who: Who, from: u8, to: u8 },
    /// `PAGE_MIGRATE_RANGE`
    Range {
        who: Who,
        at: Address,
        pages: u8,
        node: Node,
        flags: u8,
    },
    /// `PAGE_MIGRATE_PHYS`, by the frames of pages
    Physical {
        at: Address,
        pages: u8,
        /// Another address in place of the first.
        instead: Option<u64>,
        node: Node,
        flags: u8,
    },
    /// An ioctl of the service with any structure.
    Device { request: u8, words: [Word; 4] },
    /// Write a setting.
    Set { setting: u8, value: Value },
    /// Write a page.
    Write { at: Address },
    /// Write a page in a child, which has a copy.
    WriteInChild { at: Address },
    /// `MADV_DONTNEED`
    Discard { at: Address, pages: u8 },
    /// `MADV_COLLAPSE`
    Collapse { at: Address },
    /// `mprotect(2)`, to read-only memory and back.
    Protect { at: Address, pages: u8 },
}

/// A list of pages to move.
#[derive(Arbitrary, Debug)]
pub struct Move {
    pub who: Who,
    pub first: Address,
    pub count: u8,
    pub order: Order,
    /// Another address, at each place that is a multiple of the number.
    pub also: Option<(u8, Address)>,
    pub node: Node,
    /// Another node, in the same way.
    pub also_to: Option<(u8, Node)>,
    pub flags: Either<u8, i32>,
    pub arrays: Arrays,
}

/// The distance from one page of a list to the next.
#[derive(Arbitrary, Debug)]
pub enum Order {
    Ascending,
    Descending,
    Same,
    /// By a number of bytes.
    By(u16),
}

/// The arrays of a call.
#[derive(Arbitrary, Debug, PartialEq, Eq)]
pub enum Arrays {
    Valid,
    /// Asks for the nodes.
    NoNodes,
    NoPages,
    NoStatus,
    InvalidPages,
    InvalidNodes,
    InvalidStatus,
    /// The number of pages exceeds the length of the arrays by this.
    Longer(u32),
}

/// A page, or an address without one.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Address {
    pub kind: Kind,
    pub page: u16,
}

/// The memory that an address is in.
#[derive(Arbitrary, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Private anonymous pages.
    Own,
    /// More of these, so that they are chosen more often.
    OwnToo,
    /// A file in memory.
    File,
    /// A large folio.
    Huge,
    /// Shared with a child.
    Shared,
    /// Never written.
    Zero,
    /// Reserved without access.
    Hole,
    /// Not mapped, or of the kernel.
    Wild,
}

/// A value of the usual range, or any value.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Either<A, B> {
    Usual(A),
    Any(B),
}

/// The destination node.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Node {
    First,
    Second,
    Any(i32),
}

/// The process whose pages are migrated.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Who {
    Own,
    OwnByNumber,
    Child,
    /// By a pidfd, with the flag of the service that it needs.
    PidFd,
    Any(i32),
}

/// A part of an ioctl's structure.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Word {
    Number(u64),
    Address(Address),
    Size,
    Child,
}

/// Text for a setting.
#[derive(Arbitrary, Debug)]
pub enum Value {
    Small(u8),
    Number(i64),
    /// One of the words that the setting takes, if it takes words.
    Word(u8),
    Text(Vec<u8>),
}

impl Operation {
    /// Returns whether the operation calls the code under test.
    pub fn is_call(&self) -> bool {
        !matches!(
            self,
            Self::Write { .. }
                | Self::WriteInChild { .. }
                | Self::Discard { .. }
                | Self::Collapse { .. }
                | Self::Protect { .. }
        )
    }
}

impl Node {
    pub fn number(self) -> i32 {
        match self {
            Self::First => 0,
            Self::Second => 1,
            Self::Any(node) => node,
        }
    }
}
