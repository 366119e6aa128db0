// SPDX-License-Identifier: GPL-2.0-only
//! The platforms of guests: an architecture, and the size of its base pages.

use clap::ValueEnum;

/// A platform that guests run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Platform {
    /// x86-64
    #[value(name = "x86-64")]
    X86,
    /// arm64, with base pages of 16 KB
    #[value(name = "arm64-16k")]
    Arm64Pages16K,
    /// arm64, with base pages of 64 KB
    #[value(name = "arm64-64k")]
    Arm64Pages64K,
    /// riscv64
    #[value(name = "riscv64")]
    Riscv64,
}

/// Requirements of guests whose architecture is not the host's, whose programs they cannot run.
pub struct Foreign {
    /// The architecture in the distribution's words, and the target of its compilers.
    pub debian: &'static str,
    pub gcc: &'static str,
    /// The target in the words of rustc.
    pub rust: &'static str,
    /// QEMU's program, and the package that contains it.
    pub qemu: &'static str,
    pub packages: &'static str,
    /// QEMU's arguments for the machine and the CPU.
    pub machine: &'static [&'static str],
    /// Whether the machine can have a node without CPUs. Otherwise the kernel divides its memory.
    pub empty_nodes: bool,
}

const ARM64: Foreign = Foreign {
    debian: "arm64",
    gcc: "aarch64-linux-gnu",
    rust: "aarch64-unknown-linux-gnu",
    qemu: "qemu-system-aarch64",
    packages: "qemu-system-arm",
    // This CPU has all three sizes of base pages.
    machine: &["-M", "virt,gic-version=3", "-cpu", "neoverse-n1"],
    empty_nodes: true,
};

const RISCV64: Foreign = Foreign {
    debian: "riscv64",
    gcc: "riscv64-linux-gnu",
    rust: "riscv64gc-unknown-linux-gnu",
    qemu: "qemu-system-riscv64",
    packages: "qemu-system-riscv64",
    machine: &["-M", "virt", "-cpu", "rv64"],
    empty_nodes: false,
};

impl Platform {
    /// Returns its name on the command line.
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or(String::new(), |value| value.get_name().to_owned())
    }

    /// Returns the end of the names of its kernels and guests.
    pub fn suffix(self) -> &'static str {
        match self {
            Platform::X86 => "",
            Platform::Arm64Pages16K => "-arm64-16k",
            Platform::Arm64Pages64K => "-arm64-64k",
            Platform::Riscv64 => "-riscv64",
        }
    }

    /// Returns the name of its architecture in the kernel's build.
    pub fn arch(self) -> &'static str {
        match self {
            Platform::X86 => "x86_64",
            Platform::Arm64Pages16K | Platform::Arm64Pages64K => "arm64",
            Platform::Riscv64 => "riscv",
        }
    }

    /// Returns the target of the kernel's build, and the file that has the kernel then.
    pub fn image(self) -> (&'static str, &'static str) {
        match self {
            Platform::X86 => ("bzImage", "arch/x86/boot/bzImage"),
            Platform::Arm64Pages16K | Platform::Arm64Pages64K => ("Image", "arch/arm64/boot/Image"),
            Platform::Riscv64 => ("Image", "arch/riscv/boot/Image"),
        }
    }

    /// Returns the files with the options of its vanilla kernel.
    pub fn fragments(self) -> &'static [&'static str] {
        const GUEST: &str = "tools/configs/guest.config";
        const ARM64: &str = "tools/configs/arm64-guest.config";
        match self {
            Platform::X86 => &[GUEST, "tools/configs/x86_64.config"],
            Platform::Arm64Pages16K => &[GUEST, ARM64, "tools/configs/arm64-16k.config"],
            Platform::Arm64Pages64K => &[GUEST, ARM64, "tools/configs/arm64-64k.config"],
            Platform::Riscv64 => &[GUEST, "tools/configs/riscv64.config"],
        }
    }

    /// One platform for each size of base pages.
    pub const OF_BASE_PAGES: [Platform; 3] = [
        Platform::X86,
        Platform::Arm64Pages16K,
        Platform::Arm64Pages64K,
    ];

    /// Returns the size of a base page, as plans have it.
    pub fn base_page(self) -> &'static str {
        match self {
            Platform::X86 | Platform::Riscv64 => "4K",
            Platform::Arm64Pages16K => "16K",
            Platform::Arm64Pages64K => "64K",
        }
    }

    /// Returns kernel arguments for all its guests.
    pub fn kernel_args(self) -> &'static str {
        match self {
            // The first argument disables the comparison of clocksources between CPUs. In about one
            // boot in 70 with four CPUs the timer of that comparison waits, with interrupts disabled,
            // for a CPU that waits for it in stop_machine(). Its timeout never expires, because it
            // reads the clock, which is jiffies until the clocksource is chosen.
            Platform::X86 => "tsc=nowatchdog log_buf_len=16M",
            // Folios of 2 MB take the place of those of a whole page table, which have 32 MB and
            // 512 MB.
            Platform::Arm64Pages16K => {
                "console=ttyAMA0 log_buf_len=16M default_hugepagesz=2M \
                 thp_anon=2M:madvise;32M:never"
            }
            Platform::Arm64Pages64K => {
                "console=ttyAMA0 log_buf_len=16M default_hugepagesz=2M \
                 thp_anon=2M:madvise;512M:never"
            }
            Platform::Riscv64 => "console=ttyS0 log_buf_len=16M numa=fake=2",
        }
    }

    /// Returns the additional requirements of its guests; `None` for x86-64.
    pub fn foreign(self) -> Option<&'static Foreign> {
        match self {
            Platform::X86 => None,
            Platform::Arm64Pages16K | Platform::Arm64Pages64K => Some(&ARM64),
            Platform::Riscv64 => Some(&RISCV64),
        }
    }
}
