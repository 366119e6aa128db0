// SPDX-License-Identifier: GPL-2.0-only
//! The kernel log, watched for reports of errors.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Context, Result, bail};
use ferry_numa::alarms::is_alarm;

const FILE: &str = "/dev/kmsg";
/// More than a record of the log can have.
const LONGEST: usize = 8192;

/// The messages that were not yet seen.
pub struct Log(File);

impl Log {
    /// Skips all messages up to now.
    pub fn new() -> Result<Self> {
        let mut file = File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(FILE)
            .context(FILE)?;
        file.seek(SeekFrom::End(0)).context(FILE)?;
        Ok(Self(file))
    }

    /// Fails if a new message reports an error, or a stall of RCU: an input may have caused it.
    pub fn check(&mut self) -> Result<()> {
        let mut record = [0; LONGEST];
        loop {
            let length = match self.0.read(&mut record) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // Messages were lost.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => continue,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context(FILE),
            };
            let message = String::from_utf8_lossy(&record[..length]);
            if is_alarm(&message) || message.contains("rcu: INFO:") {
                bail!("the kernel log reports: {}", message.trim());
            }
        }
    }
}
