// SPDX-License-Identifier: GPL-2.0-only
//! The cache folder: everything downloaded or built, made so that an interrupted step is redone.

use crate::step::Step;
use anyhow::{anyhow, bail, Context as _, Result};
use fs4::FileExt;
use nix::fcntl::{fcntl, FcntlArg, FdFlag};
use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};
use tempfile::NamedTempFile;

pub struct Cache {
    root: PathBuf,
    _lock: File,
}

impl Cache {
    /// `FERRY_CACHE`, else the user's cache folder.
    pub fn default_root() -> Result<PathBuf> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        if let Some(dir) = set("FERRY_CACHE") {
            return Ok(std::path::absolute(dir)?);
        }
        if let Some(dir) = set("XDG_CACHE_HOME") {
            return Ok(PathBuf::from(dir).join("ferry"));
        }
        let home = set("HOME").context("neither FERRY_CACHE nor HOME is set")?;
        Ok(PathBuf::from(home).join(".cache/ferry"))
    }

    /// Opens the cache and holds its lock until dropped: one `ferry` at a time works in it.
    ///
    /// Programs that it starts inherit the lock. If it is killed, the cache stays locked until these have
    /// ended too, so that no two builds work in one tree.
    pub fn open(root: &Path) -> Result<Self> {
        fs::create_dir_all(root.join("logs"))
            .with_context(|| format!("cannot create the cache folder {}", root.display()))?;
        let root = root.canonicalize()?;
        let lock = File::create(root.join("lock"))
            .with_context(|| format!("cannot write to the cache folder {}", root.display()))?;
        if FileExt::try_lock(&lock).is_err() {
            bail!(
                "another ferry is at work in {root}, or a program that a killed one had started: wait for it \
                 (`fuser -v {root}/lock` shows its processes), or set FERRY_CACHE to another folder",
                root = root.display()
            );
        }
        fcntl(&lock, FcntlArg::F_SETFD(FdFlag::empty()))?;
        let cache = Cache { root, _lock: lock };
        cache.remove_leftovers()?;
        Ok(cache)
    }

    /// Returns a second handle to the cache, which shares its lock.
    pub fn share(&self) -> Result<Self> {
        Ok(Cache {
            root: self.root.clone(),
            _lock: self._lock.try_clone()?,
        })
    }

    /// Removes the temporary folders of calls that were killed. The lock is held, so no other call uses
    /// them.
    fn remove_leftovers(&self) -> Result<()> {
        remove_dir(&self.path("guests"))?;
        for entry in fs::read_dir(&self.root)? {
            let entry = entry?;
            let is_temporary = entry.file_name().as_encoded_bytes().starts_with(b".tmp");
            if is_temporary && entry.file_type()?.is_dir() {
                remove_dir(&entry.path())?;
            }
        }
        Ok(())
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.root.join(relative)
    }

    pub fn log(&self, name: &str) -> PathBuf {
        self.root.join("logs").join(format!("{name}.log"))
    }

    /// Returns a step with the log of this name.
    pub fn step(&self, title: impl Into<String>, log: &str) -> Step<'static> {
        Step::new(title, self.log(log))
    }

    /// A folder of the cache, created if missing.
    pub fn dir(&self, relative: impl AsRef<Path>) -> Result<PathBuf> {
        let dir = self.path(relative);
        fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    /// A folder that is filled under another name and renamed when complete; made only once.
    pub fn whole_dir(
        &self,
        relative: impl AsRef<Path>,
        fill: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let dir = self.path(relative);
        if dir.is_dir() {
            return Ok(dir);
        }
        let mut partial = dir.clone().into_os_string();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        remove_dir(&partial)?;
        fs::create_dir_all(&partial)?;
        fill(&partial)?;
        fs::rename(&partial, &dir)?;
        Ok(dir)
    }

    pub fn need_space(&self, gib: u64, what: &str) -> Result<()> {
        enough_space(&self.root, gib, what)
    }
}

/// Reads a log, which may have bytes that are not UTF-8.
pub fn read_log(path: &Path) -> Result<String> {
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

pub fn enough_space(dir: &Path, gib: u64, what: &str) -> Result<()> {
    let free = fs4::available_space(dir)? >> 30;
    if free < gib {
        bail!(
            "not enough space for {what}: {} has {free} GiB free and {gib} GiB are needed; \
             free some, or set FERRY_CACHE to a folder on a larger disk",
            dir.display()
        );
    }
    Ok(())
}

pub fn remove_dir(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// Writes a file whole or not at all: what reads it never sees half.
pub fn write_atomic(path: &Path, content: &[u8]) -> Result<()> {
    let write = || -> Result<()> {
        let mut file = file_beside(path)?;
        file.write_all(content)?;
        file.persist(path)?;
        Ok(())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Creates a file in the folder of `path`, which is created if missing. The file is removed unless it is
/// kept. A shell script is executable.
fn file_beside(path: &Path) -> Result<NamedTempFile> {
    let dir = path.parent().context("a file needs a folder")?;
    fs::create_dir_all(dir)?;
    let mode = match path.extension().is_some_and(|end| end == "sh") {
        true => 0o755,
        false => 0o644,
    };
    let file = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(mode))
        .tempfile_in(dir)?;
    Ok(file)
}

/// Writes what a user asked for: whole or not at all, but into what is there if that is no regular file,
/// such as a pipe or /dev/null.
pub fn write_result(path: &Path, content: &[u8]) -> Result<()> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => {
            fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
        }
        _ => write_atomic(&std::path::absolute(path)?, content),
    }
}

/// Fails if `write_result` could not write there, so that this is known before hours of measuring.
pub fn check_result(path: &Path) -> Result<()> {
    let checked = match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(anyhow!("it is a folder")),
        // To open a pipe would wait for its reader.
        Ok(found) if !found.is_file() => Ok(()),
        _ => file_beside(&std::path::absolute(path)?).map(drop),
    };
    checked.with_context(|| format!("cannot write {}", path.display()))
}

/// A note beside built files that says from what they were built; written last, removed first.
pub struct Stamp(PathBuf);

impl Stamp {
    pub fn new(path: PathBuf) -> Self {
        Stamp(path)
    }

    pub fn is(&self, key: &str) -> bool {
        fs::read_to_string(&self.0).is_ok_and(|found| found == key)
    }

    pub fn clear(&self) -> Result<()> {
        match fs::remove_file(&self.0) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    pub fn set(&self, key: &str) -> Result<()> {
        write_atomic(&self.0, key.as_bytes())
    }
}

/// A content key: every part is length-prefixed, so no two different lists make the same key.
#[derive(Default)]
pub struct Key(blake3::Hasher);

impl Key {
    pub fn add(&mut self, part: impl AsRef<[u8]>) -> &mut Self {
        let part = part.as_ref();
        self.0.update(&(part.len() as u64).to_le_bytes());
        self.0.update(part);
        self
    }

    pub fn finish(&self) -> String {
        self.0.finalize().to_hex()[..32].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn scripts_are_executable() {
        let temp = tempfile::tempdir().unwrap();
        for (name, mode) in [("a.sh", 0o755), ("a.c", 0o644)] {
            let path = temp.path().join("new").join(name);
            write_atomic(&path, b"x").unwrap();
            let found = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(found & 0o777, mode, "{name}");
        }
    }

    #[test]
    fn key_tells_the_cut_between_parts() {
        let key = |parts: &[&str]| {
            let mut key = Key::default();
            for part in parts {
                key.add(part);
            }
            key.finish()
        };
        assert_ne!(key(&["ab", "c"]), key(&["a", "bc"]));
        assert_eq!(key(&["ab", "c"]), key(&["ab", "c"]));
        assert_eq!(key(&[]).len(), 32);
    }

    #[test]
    fn results_go_into_what_is_no_file() {
        use std::{io::Read, os::unix::fs::FileTypeExt};
        let temp = tempfile::tempdir().unwrap();
        let pipe = temp.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || {
                let mut text = String::new();
                fs::File::open(pipe)
                    .unwrap()
                    .read_to_string(&mut text)
                    .unwrap();
                text
            }
        });
        write_result(&pipe, b"figures").unwrap();
        assert_eq!(reader.join().unwrap(), "figures");
        assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
        let file = temp.path().join("new/file");
        write_result(&file, b"figures").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"figures");
    }

    #[test]
    fn what_cannot_be_written_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("new/file");
        check_result(&file).unwrap();
        assert_eq!(fs::read_dir(temp.path().join("new")).unwrap().count(), 0);
        check_result(Path::new("/dev/full")).unwrap();

        fs::write(&file, "").unwrap();
        let below_a_file = file.join("x");
        for path in [temp.path(), &below_a_file] {
            let named = path.display().to_string();
            for tried in [check_result(path), write_result(path, b"figures")] {
                let error = tried.unwrap_err().to_string();
                assert!(error.contains(&named), "{error}");
            }
        }
    }

    #[test]
    fn interrupted_folder_is_made_again() {
        let temp = tempfile::tempdir().unwrap();
        let cache = Cache::open(temp.path()).unwrap();
        let failed = cache.whole_dir("a", |dir| {
            fs::write(dir.join("half"), "")?;
            bail!("interrupted")
        });
        assert!(failed.is_err());
        assert!(!cache.path("a").exists());
        let dir = cache
            .whole_dir("a", |dir| Ok(fs::write(dir.join("whole"), "")?))
            .unwrap();
        assert!(dir.join("whole").exists());
        assert!(!dir.join("half").exists());
    }

    #[test]
    fn second_user_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let first = Cache::open(temp.path()).unwrap();
        let in_use = first.dir("guests/guest-1").unwrap();
        assert!(Cache::open(temp.path()).is_err());
        assert!(in_use.exists());
    }

    #[test]
    fn next_user_removes_what_a_killed_one_left() {
        let temp = tempfile::tempdir().unwrap();
        for dir in ["guests/guest-1", "guests/turns-1", ".tmp1/usr", "src/7.3"] {
            fs::create_dir_all(temp.path().join(dir)).unwrap();
            fs::write(temp.path().join(dir).join("file"), "").unwrap();
        }
        let cache = Cache::open(temp.path()).unwrap();
        assert!(!cache.path("guests").exists() && !cache.path(".tmp1").exists());
        assert!(cache.path("src/7.3/file").exists());
    }

    #[test]
    fn stamp_follows_its_key() {
        let temp = tempfile::tempdir().unwrap();
        let stamp = Stamp::new(temp.path().join("s"));
        assert!(!stamp.is("k"));
        stamp.set("k").unwrap();
        assert!(stamp.is("k"));
        assert!(!stamp.is("l"));
        stamp.clear().unwrap();
        assert!(!stamp.is("k"));
        stamp.clear().unwrap();
    }

    #[test]
    fn space_that_cannot_be_there_is_refused() {
        let error = enough_space(Path::new("/"), 1 << 40, "a test").unwrap_err();
        assert!(error.to_string().contains("FERRY_CACHE"));
    }
}
