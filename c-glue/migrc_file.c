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
 * Who migrates sets AS_FERRY_UNFLUSHED, and then sees that i_writecount is not
 * above 0; who opens raises i_writecount, and then sees whether that is set. One
 * of the two sees the other.
 *
 * What was seen so by a batch that is not retained yet is told by a number, which
 * a batch reads before it unmaps, and again when it is to be left unflushed, and
 * which is raised by who opens: if it has changed, the batch is flushed at once,
 * before its folios are unlocked and so before anybody can write them. From when
 * it has read that again to when its group is on the ledger, or gone, it is a
 * reader by SRCU, and waited for. The flag is taken away before the number is
 * raised a second time: who has seen it set before, and i_writecount when that is
 * 0 again, sees that, too.
 *
 * Locks: none. Files are judged under the lock of a page table, by who has the
 * folio locked. Who opens may sleep. What he waits for allocates nothing, and
 * waits for copies at most.
 */
#include <linux/export.h>
#include <linux/ferry_group.h>
#include <linux/fs.h>
#include <linux/kernel.h>
#include <linux/magic.h>
#include <linux/pagemap.h>
#include <linux/srcu.h>

bool ferry_migrc_files __read_mostly;

DEFINE_STATIC_SRCU(ferry_batches);

/* Raised by each who waits for batches. */
static atomic_t ferry_waits = ATOMIC_INIT(0);

/* Before a batch unmaps: to be told to ferry_batch_begins(). */
unsigned int ferry_batch_number(void)
{
	return atomic_read(&ferry_waits);
}

/*
 * A batch is to be left unflushed that had this number. Returns what is to be told
 * to ferry_batch_settled(); or -1 if it must be flushed now.
 */
int ferry_batch_begins(unsigned int number)
{
	/* A full barrier; with that of ferry_wait_for_batches(). */
	int idx = srcu_read_lock(&ferry_batches);

	/* See ferry_retention_disable(). */
	if (number == atomic_read(&ferry_waits) && !READ_ONCE(ferry_disabled))
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
unsigned int ferry_judge_file(const struct folio *folio)
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
	/* With the full barrier of get_write_access(), see above. */
	smp_mb();
	if (atomic_read(&inode->i_writecount) > 0)
		return BIT(FERRY_REFUSED_WRITTEN);
	return 0;
}

/*
 * A file may be written from now on: its i_writecount was raised. When this
 * returns nobody reads an old folio of it. May sleep.
 */
void ferry_before_write(struct inode *inode)
{
	unsigned long *flags = &inode->i_mapping->flags;

	might_sleep();
	/* After i_writecount was raised, by a value-returning atomic. */
	if (likely(!test_bit(AS_FERRY_UNFLUSHED, flags)) ||
	    inode->i_mapping != &inode->i_data ||
	    ferry_hook_is_out(FERRY_HOOK_FILE))
		return;
	ferry_wait_for_batches();
	ferry_migrc_drain(FERRY_DRAIN_WRITE);
	/* Who has seen it set is flushed at once, whatever else it sees later. */
	clear_bit(AS_FERRY_UNFLUSHED, flags);
	/* Who sees the number as it was has not seen the flag of before. */
	smp_mb__after_atomic();
	atomic_inc(&ferry_waits);
}
EXPORT_SYMBOL(ferry_before_write);
