// SPDX-License-Identifier: GPL-2.0-only
//! Compiles the C wrappers of page_migrate.h in user/include.

fn main() {
    let files = [
        "c/seed.c",
        "../../user/include/page_migrate.h",
        "../../c-glue/include/uapi/linux/page_migrate.h",
    ];
    for file in files {
        println!("cargo::rerun-if-changed={file}");
    }
    cc::Build::new()
        .file(files[0])
        .include("../../user/include")
        .include("../../c-glue/include/uapi")
        .std("c11")
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .compile("seed");
}
