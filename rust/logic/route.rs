// SPDX-License-Identifier: GPL-2.0-only

//! Who copies a batch: the CPUs, the channels of DMA engines, or both.

/// The words of `copy/method`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMethod {
    /// Whichever is there: CPUs that are idle, else channels.
    Auto,
    /// As mainline does: the migrating task, folio by folio.
    Serial,
    /// The migrating task and idle CPUs.
    Cpu,
    /// Channels, as far as they take it.
    Dma,
    /// CPUs and channels together.
    Hybrid,
}

impl CopyMethod {
    /// Whether an operator who chooses it wants channels.
    pub fn needs_channels(self) -> bool {
        matches!(self, CopyMethod::Dma | CopyMethod::Hybrid)
    }
}

/// What is asked for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Idle CPUs.
    pub cpus: bool,
    /// Channels.
    pub channels: bool,
}

impl Route {
    /// What channels have room for nobody else copies.
    pub fn channels_alone(self) -> bool {
        self.channels && !self.cpus
    }
}

/// Who is to copy a batch, if so many CPUs are idle, asked for where it matters; and whether there
/// are channels that the batch is large enough for, and its folios are large. [`None`]: nobody but
/// mainline.
///
/// Of small folios, each with a descriptor of its own, channels cost more than they spare.
///
/// ```
/// use ferry_logic::route::{choose, Route, CopyMethod};
///
/// let channels = Route { cpus: false, channels: true };
/// assert_eq!(choose(CopyMethod::Auto, true, true, || 0), Some(channels));
/// assert_eq!(choose(CopyMethod::Auto, true, true, || 3), Some(Route { cpus: true, channels: false }));
/// // Without a channel CPUs copy.
/// assert_eq!(choose(CopyMethod::Dma, false, true, || 3), Some(Route { cpus: true, channels: false }));
/// assert_eq!(choose(CopyMethod::Serial, true, true, || 3), None);
/// ```
pub fn choose(
    way: CopyMethod,
    channels: bool,
    large: bool,
    idle: impl FnOnce() -> usize,
) -> Option<Route> {
    let (cpus, channels) = match way {
        CopyMethod::Serial => return None,
        CopyMethod::Cpu => (true, false),
        CopyMethod::Auto if channels && large => match idle() {
            0 => (false, true),
            _ => (true, false),
        },
        CopyMethod::Auto => (true, false),
        CopyMethod::Dma => (!channels, channels),
        CopyMethod::Hybrid => (true, channels),
    };
    Some(Route { cpus, channels })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAYS: [CopyMethod; 5] = [
        CopyMethod::Auto,
        CopyMethod::Serial,
        CopyMethod::Cpu,
        CopyMethod::Dma,
        CopyMethod::Hybrid,
    ];

    #[test]
    fn without_channels_no_way_but_serial_is_without_cpus() {
        for way in WAYS {
            for idle in [0, 1, 31] {
                let route = choose(way, false, true, || idle);
                let cpus = Route {
                    cpus: true,
                    channels: false,
                };
                assert_eq!(route, (way != CopyMethod::Serial).then_some(cpus));
            }
        }
    }

    #[test]
    fn somebody_is_always_asked() {
        for way in WAYS {
            for idle in [0, 1] {
                let route = choose(way, true, true, || idle);
                assert!(route.is_none_or(|route| route.cpus || route.channels));
            }
        }
    }

    #[test]
    fn only_hybrid_has_both() {
        for way in WAYS {
            let both =
                choose(way, true, false, || 1).is_some_and(|route| route.cpus && route.channels);
            assert_eq!(both, way == CopyMethod::Hybrid);
        }
    }
}
