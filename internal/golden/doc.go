// Package golden compares a text with a file in testdata, and writes that file
// under the flag -rewrite.
package golden
