// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: which files migrc may leave unflushed, and what happens before they may
 * be written.
 *
 * A file that nobody has open for writing has contents that nobody changes: what
 * is mapped of it reads the same in the old folio and in the new one. So when
 * somebody opens it for writing all that may be read stale of it is flushed, and
 * until he has closed it nothing more is left unflushed (O3).
 *
 * Files are told apart by a hash of their mapping. A bucket counts the groups that
 * have a file of it, from when a translation was cleared to when the group is
 * flushed and gone. AS_FERRY_UNFLUSHED tells exactly, and for good, of which files
 * a translation ever was left.
 *
 * The migrating task sets the flag, raises the count, and then sees that
 * i_writecount is not above 0. The opening task raises i_writecount, and then reads
 * flag and count. There are full barriers between, so one of the two sees the other.
 * An opening task that reads a count of 0 has nothing to wait for: a group lowers
 * the count by a release, after its flush.
 *
 * A batch that is not retained yet is told by @opens of the bucket. It reads this
 * when it raises the count, before it reads i_writecount, and again before it leaves
 * its flush for later. The opening task raises it after i_writecount: if it has changed,
 * the batch is flushed at once, before its folios are unlocked and so before they
 * can be written. From its second look until its group is on the ledger, or gone, the
 * batch is an SRCU reader. The opening task waits for readers only if the count says
 * that there still is a group after it flushed those of the ledger.
 *
 * ferry_drain() tells all batches by a number of its own, in the same way.
 *
 * Locks: none. Files are judged under the lock of a page table, by a task that has
 * the folio locked. The opening task may sleep. It waits for batches,
 * which allocate nothing and wait for copies at most.
 */
#include <linux/export.h>
#include <linux/ferry_group.h>
#include <linux/fs.h>
#include <linux/hash.h>
#include <linux/kernel.h>
#include <linux/magic.h>
#include <linux/pagemap.h>
#include <linux/srcu.h>

bool ferry_migrc_files __read_mostly;

DEFINE_STATIC_SRCU(ferry_batches);

/* Raised by each who waits for batches. */
static atomic_t ferry_waits = ATOMIC_INIT(0);

/*
 * @groups: that have a file of this bucket, and are not flushed
 * @opens: raised by tasks that open one of these files
 */
static struct ferry_files {
	atomic_t groups;
	atomic_t opens;
} ferry_files[1 << FERRY_FILE_BITS];

static unsigned int ferry_file_of(const struct address_space *mapping)
{
	return hash_ptr(mapping, FERRY_FILE_BITS);
}

/* How often files of a group's buckets were opened by now; counts wrap. */
static unsigned int ferry_count_opens(const struct ferry_unmaps *unmaps)
{
	unsigned int file, sum = 0;

	for_each_set_bit(file, unmaps->files, 1 << FERRY_FILE_BITS)
		sum += atomic_read(&ferry_files[file].opens);
	return sum;
}

/* A translation of a file was cleared for a group. Full barrier after it. */
static void ferry_note_file(struct ferry_unmaps *unmaps, unsigned int file)
{
	if (!__test_and_set_bit(file, unmaps->files)) {
		atomic_inc(&ferry_files[file].groups);
		unmaps->opens += atomic_read(&ferry_files[file].opens);
	}
	/* With the full barrier of get_write_access(), see above. */
	smp_mb();
}

/* Forgets the files of a group that is flushed. */
void ferry_forget_files(struct ferry_unmaps *unmaps)
{
	unsigned int file;

	for_each_set_bit(file, unmaps->files, 1 << FERRY_FILE_BITS)
		atomic_fetch_dec_release(&ferry_files[file].groups);
}

/* Whether a group may have a file of this bucket. */
bool ferry_group_has_file(const struct ferry_group *group, unsigned int file)
{
	return test_bit(file, group->unmaps.files);
}

/* Before a batch unmaps: to be told to ferry_batch_begins(). */
unsigned int ferry_batch_number(void)
{
	return atomic_read(&ferry_waits);
}

/*
 * Before a batch leaves its flush for later. Return: the index for
 * ferry_batch_settled(), or -1 if the batch must be flushed now.
 */
int ferry_batch_begins(const struct ferry_group *group)
{
	/* A full barrier, as in the tasks that wait for batches. */
	int idx = srcu_read_lock(&ferry_batches);

	/* See ferry_retention_disable(). */
	if (group->number == atomic_read(&ferry_waits) &&
	    !READ_ONCE(ferry_disabled) &&
	    group->unmaps.opens == ferry_count_opens(&group->unmaps))
		return idx;
	srcu_read_unlock(&ferry_batches, idx);
	return -1;
}

/* What it keeps is where a drain finds it, or is free. In the same task. */
void ferry_batch_settled(int idx)
{
	srcu_read_unlock(&ferry_batches, idx);
}

/*
 * What has been unmapped so far was or will be flushed at once, or is found by a
 * drain after this. May sleep.
 */
void ferry_wait_for_batches(void)
{
	atomic_inc_return(&ferry_waits);
	synchronize_srcu_expedited(&ferry_batches);
}

/*
 * Is it a file whose pages change by nothing but who has it open for writing? Not
 * those of other file systems, where other hosts or servers may, or what manages
 * the space on the device is a file as well.
 */
static bool ferry_file_is_plain(const struct inode *inode)
{
	if (!S_ISREG(inode->i_mode) || IS_DAX(inode) || IS_SWAPFILE(inode) ||
	    IS_NOQUOTA(inode))
		return false;
	switch (inode->i_sb->s_magic) {
	case BTRFS_SUPER_MAGIC:
	case EROFS_SUPER_MAGIC_V1:
	case EXT4_SUPER_MAGIC:
	case SQUASHFS_MAGIC:
	case XFS_SUPER_MAGIC:
		return true;
	}
	return false;
}

/*
 * Why a file's folio cannot be left unflushed; 0: it can, until the file is opened
 * for writing. The folio is locked.
 */
unsigned int ferry_judge_file(struct ferry_unmaps *unmaps,
			      const struct folio *folio)
{
	struct address_space *mapping = folio->mapping;
	struct inode *inode = mapping ? mapping->host : NULL;

	if (!READ_ONCE(ferry_migrc_files) || !inode ||
	    inode->i_mapping != mapping || !ferry_file_is_plain(inode))
		return BIT(FERRY_REFUSED_FILE);
	/* Not to have others wait for what will not be left. */
	if (atomic_read(&inode->i_writecount) > 0)
		return BIT(FERRY_REFUSED_WRITTEN);
	if (!test_bit(AS_FERRY_UNFLUSHED, &mapping->flags))
		set_bit(AS_FERRY_UNFLUSHED, &mapping->flags);
	ferry_note_file(unmaps, ferry_file_of(mapping));
	if (atomic_read(&inode->i_writecount) > 0)
		return BIT(FERRY_REFUSED_WRITTEN);
	return 0;
}

/*
 * A file may be written from now on: its i_writecount was raised. When this
 * returns no CPU reads an old folio of it. A file of which none was ever left
 * unflushed pays one load, and one of which none is, two. May sleep.
 */
void ferry_before_write(struct inode *inode)
{
	struct address_space *mapping = inode->i_mapping;
	struct ferry_files *files;
	unsigned int file;

	might_sleep();
	/* After i_writecount was raised, by a value-returning atomic. */
	if (likely(!test_bit(AS_FERRY_UNFLUSHED, &mapping->flags)) ||
	    mapping != &inode->i_data || ferry_hook_is_out(FERRY_HOOK_FILE))
		return;
	file = ferry_file_of(mapping);
	files = &ferry_files[file];
	/* With the release of ferry_forget_files(): what it had is flushed. */
	if (!atomic_read_acquire(&files->groups))
		return;
	/* Full barrier; with that of ferry_batch_begins(). */
	atomic_inc_return(&files->opens);
	ferry_migrc_drain_file(file);
	if (!atomic_read_acquire(&files->groups))
		return;
	/* Of a batch that is being migrated, or of another file of the bucket. */
	synchronize_srcu_expedited(&ferry_batches);
	ferry_migrc_drain_file(file);
}
EXPORT_SYMBOL(ferry_before_write);
