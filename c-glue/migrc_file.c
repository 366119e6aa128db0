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
 * of the two sees the other. What was seen before a batch is retained is waited
 * for by SRCU: a batch is a reader from before it unmaps to when its group is on
 * the ledger, or gone.
 *
 * Locks: none. Files are judged under the lock of a page table, by who has the
 * folio locked. Who opens may sleep, and holds nothing that a batch waits for.
 */
#include <linux/export.h>
#include <linux/ferry_group.h>
#include <linux/fs.h>
#include <linux/kernel.h>
#include <linux/pagemap.h>
#include <linux/srcu.h>

bool ferry_migrc_files __read_mostly;

DEFINE_STATIC_SRCU(ferry_batches);

/* A batch begins that may be left unflushed. To be told to ferry_batch_settled(). */
int ferry_batch_begins(void)
{
	return srcu_read_lock(&ferry_batches);
}

/* What it keeps is where a drain finds it, or is free. In the same task. */
void ferry_batch_settled(int idx)
{
	srcu_read_unlock(&ferry_batches, idx);
}

/*
 * Batches that have begun have settled: a drain after this finds what they keep.
 * May sleep.
 */
void ferry_wait_for_batches(void)
{
	synchronize_srcu_expedited(&ferry_batches);
}

/*
 * Is it a kind of file whose pages change by nothing but who has it open for
 * writing? With data on a block device, as others may change what is elsewhere;
 * and not FUSE's, which is the only one of these with a subtype: its server may.
 */
static bool ferry_file_is_local(const struct inode *inode)
{
	return S_ISREG(inode->i_mode) && !IS_DAX(inode) &&
	       !IS_SWAPFILE(inode) && !IS_NOQUOTA(inode) &&
	       (inode->i_sb->s_type->fs_flags &
		(FS_REQUIRES_DEV | FS_HAS_SUBTYPE)) == FS_REQUIRES_DEV;
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
	    inode->i_mapping != mapping || !ferry_file_is_local(inode))
		return BIT(FERRY_REFUSED_FILE);
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

	/* After i_writecount was raised, by a value-returning atomic. */
	if (likely(!test_bit(AS_FERRY_UNFLUSHED, flags)) ||
	    ferry_hook_is_out(FERRY_HOOK_FILE))
		return;
	ferry_wait_for_batches();
	ferry_migrc_drain(FERRY_DRAIN_WRITE);
	/* It cannot be wanted before we have closed it. */
	clear_bit(AS_FERRY_UNFLUSHED, flags);
}
EXPORT_SYMBOL(ferry_before_write);
